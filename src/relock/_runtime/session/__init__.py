"""One client in one process, for threads."""
