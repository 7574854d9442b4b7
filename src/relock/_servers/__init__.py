"""Real servers of one's own, for the demo and for tests of code that uses relock."""
