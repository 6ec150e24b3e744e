"""Transfers of NIXL: what the nixl collector is made of."""
