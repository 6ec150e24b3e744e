"""Resolution of identifiers (a pid, a cgroup path, a GPU's UUID) to labels."""
