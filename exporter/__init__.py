"""accel-exporter: what accelerator jobs do and what their hardware reports, as metrics and spans."""

__version__ = "0.1.0"
