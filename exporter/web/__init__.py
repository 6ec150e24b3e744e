"""Parts of the HTTP server: listening sockets, and the web configuration file (TLS, users, headers, rate limit)."""
