"""What ``relock bench`` is made of: workers that hand a lock to each other, and what their turns amount to."""
