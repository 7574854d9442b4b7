"""What names, finds and reaches a server: URLs, sockets, and why a server gave no answer."""
