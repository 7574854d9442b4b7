"""Waiters whose processes were killed."""

from support.masters import Deployment

HOUR_MS = 3_600_000


def count_as_alive(server: Deployment, name: str) -> None:
    """Let all waiters count as alive for an hour, so that no test can pass because they count as dead."""
    waiters = f"lock:{{{name}}}:waiters"
    for member in server.members:
        with member.client() as plain:
            for waiter in plain.zrange(waiters, 0, -1):
                plain.zincrby(waiters, HOUR_MS, waiter)
