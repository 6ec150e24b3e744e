"""Clients of the kubelet and the API server: device allocations and pod labels of this node."""
