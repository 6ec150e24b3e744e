"""Inference: requests to LLM servers and their responses, from the bytes of sockets and TLS connections."""
