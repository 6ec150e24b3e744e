"""RDMA verbs: where a provider's functions are, and what the calls of them say."""
