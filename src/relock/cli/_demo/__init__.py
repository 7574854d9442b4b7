"""The demo: a story in acts, the workers that play it, and the verdict on what was counted."""
