"""The kernel's log, record by record."""
