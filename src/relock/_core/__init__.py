"""What decides: no sockets, no threads, no event loop, no clock, no randomness. Those are passed in."""
