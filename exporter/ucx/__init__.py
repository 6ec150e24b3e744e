"""Calls of UCX: what the ucx collector is made of."""
