"""RDMA verbs: where a provider's functions are, and what calls of them mean."""
