"""What LLM servers answer, from the bytes of their sockets."""
