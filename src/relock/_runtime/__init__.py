"""Runtime: it carries out what the core's flows ask for, with redis-py, threads and event loops."""
