"""Of NVIDIA's bindings: the one constant that the exporter uses."""

DCGM_OPERATION_MODE_AUTO = 1
