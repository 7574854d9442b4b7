"""The drivers: redis-py, threads and later an event loop live here and nowhere else."""
