"""Session: all that one client has in one process."""
