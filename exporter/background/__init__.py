"""Background work besides scrapes: child processes with their supervisor, and pollers of slow sources."""
