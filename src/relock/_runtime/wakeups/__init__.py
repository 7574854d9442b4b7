"""The waiters, and the subscriptions that wake them."""
