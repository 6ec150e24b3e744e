"""From an identifier (a pid, a cgroup path) to labels."""
