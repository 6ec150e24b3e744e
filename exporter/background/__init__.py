"""What runs behind the scrapes: child processes with their supervisor, and pollers of slow sources."""
