"""Parts of the HTTP surface: where to listen, and the web configuration file (TLS, users, headers, rate limit)."""
