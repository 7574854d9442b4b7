"""Decisions of relock, without sockets, threads, event loop, clock or randomness: those are passed in."""
