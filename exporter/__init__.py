"""accel-exporter: what accelerator jobs do and what their hardware says, as metrics and spans."""

__version__ = "0.1.0"
