"""Waiting for a condition to become true, instead of sleeping and hoping."""

import time
from collections.abc import Callable

POLL_SECONDS = 0.003
TRY_SECONDS = 0.01


def until(predicate: Callable[[], object], *, within: float, what: str) -> float:
    """Return the seconds that passed until `predicate` was true; fail after `within` seconds, naming `what`.

    A passing test never depends on `within`, which only bounds the time until a failure is seen.
    """
    begin = time.monotonic()
    while not predicate():
        if time.monotonic() - begin > within:
            raise AssertionError(f"not within {within} s: {what}")
        time.sleep(POLL_SECONDS)
    return time.monotonic() - begin


def pause() -> None:
    """Wait a moment between two tries of a test that tries again and again: the other tests need the processor."""
    time.sleep(TRY_SECONDS)
