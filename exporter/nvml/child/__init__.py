"""The child process that calls NVML. The exporter itself imports nothing from here."""
