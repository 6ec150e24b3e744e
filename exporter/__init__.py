"""accel-exporter: what accelerator jobs do and the state of the hardware they run on, as metrics and spans."""

__version__ = "0.1.0"
