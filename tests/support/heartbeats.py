"""Waiting without heartbeats: a waiter that no message tells of its turn waits until a lease ends, or longer.

Heartbeats would show the turn within seconds, and on a busy machine a message may take as long.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from relock._runtime.background import janitor

NEVER_SECONDS = 600.0  # longer than any test
MOMENT_SECONDS = 0.05


@contextmanager
def without_heartbeats() -> Iterator[None]:
    """Let no client of this process send heartbeats, except when a subscription is made anew or a lease is over."""
    with patch.object(janitor, "HEARTBEAT_SECONDS", NEVER_SECONDS):
        yield


@contextmanager
def without_any_heartbeat() -> Iterator[None]:
    """Let no client send any heartbeat, without exception: for tests that count requests, and lose none."""
    with patch.object(janitor.Janitor, "_beat", _put_off):
        yield


@contextmanager
def heartbeats_put_off() -> Iterator[None]:
    """Let no client send a heartbeat until the block is over; then those that were due are sent at once."""
    with patch.object(janitor.Janitor, "_beat", _put_off_for_now):
        yield


def _put_off_for_now(made: janitor.Janitor) -> None:
    """Make the next heartbeat due in a moment."""
    made._beat_at = made._session.clock() + MOMENT_SECONDS


def _put_off(made: janitor.Janitor) -> None:
    """Make the next heartbeat due only after the end of any test."""
    made._beat_at = made._session.clock() + NEVER_SECONDS
