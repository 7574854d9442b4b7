"""Parts of ``relock bench``: workers that hand a lock to each other, and the figures of their turns."""
