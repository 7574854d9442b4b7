"""Waiters, and the subscriptions that wake them."""
