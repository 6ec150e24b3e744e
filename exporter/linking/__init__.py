"""Links between the spans of requests and those of the GPU work that was done meanwhile."""
