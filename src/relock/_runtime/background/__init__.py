"""Background threads: renewing, cleaning up, telling."""
