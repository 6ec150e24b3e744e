"""GPUDirect Storage: what the cufile collector is made of."""
