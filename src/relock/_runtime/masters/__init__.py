"""The masters: connections to each, what is known of it, and asking several at once."""
