"""Who waits, and the subscriptions on which they are woken."""
