"""Waiting without heartbeats: who is told by nobody that its turn has come waits until a lease ends, or longer.

With them it would find out within seconds, which is no longer than a busy machine may take to tell it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from relock._runtime.background import janitor

NEVER_SECONDS = 600.0  # longer than any test


@contextmanager
def without_heartbeats() -> Iterator[None]:
    """No client of this process sends any meanwhile, but where a subscription was made anew or a lease is over."""
    with patch.object(janitor, "HEARTBEAT_SECONDS", NEVER_SECONDS):
        yield


@contextmanager
def without_any_heartbeat() -> Iterator[None]:
    """Not even there: where requests are counted, and none is lost."""
    with patch.object(janitor.Janitor, "_beat", _put_off):
        yield


def _put_off(made: janitor.Janitor) -> None:
    """None is due for as long as a test lasts."""
    made._beat_at = made._session.clock() + NEVER_SECONDS
