"""Waiting without heartbeats: a waiter that no message tells of its turn waits until a lease ends, or longer.

With heartbeats it would find out within seconds, and on a busy machine a message may take as long as that.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from relock._runtime.background import janitor

NEVER_SECONDS = 600.0  # longer than any test


@contextmanager
def without_heartbeats() -> Iterator[None]:
    """No client of this process sends any meanwhile, except when a subscription is made anew or a lease is over."""
    with patch.object(janitor, "HEARTBEAT_SECONDS", NEVER_SECONDS):
        yield


@contextmanager
def without_any_heartbeat() -> Iterator[None]:
    """No client sends any, not even then: for tests that count requests, and lose none."""
    with patch.object(janitor.Janitor, "_beat", _put_off):
        yield


def _put_off(made: janitor.Janitor) -> None:
    """Makes the next one due only after the end of any test."""
    made._beat_at = made._session.clock() + NEVER_SECONDS
