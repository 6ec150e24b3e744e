"""NCCL's RAS subsystem: one process of a job, queried periodically, reports on all ranks of the job."""
