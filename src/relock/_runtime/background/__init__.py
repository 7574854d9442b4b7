"""What runs on threads of its own: renewing, cleaning up, telling."""
