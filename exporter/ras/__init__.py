"""NCCL's RAS subsystem: asked now and then, what one process of a job knows of all its ranks."""
