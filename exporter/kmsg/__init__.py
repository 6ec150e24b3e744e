"""Reading of the kernel log, record by record."""
