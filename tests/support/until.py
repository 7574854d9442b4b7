"""Waiting for a condition to become true, instead of sleeping and hoping."""

import time
from collections.abc import Callable

POLL_SECONDS = 0.003  # between two looks at first
POLL_SECONDS_MAX = 0.1
POLL_SHARE = 0.05  # of the time that has passed
TRY_SECONDS = 0.01


def until(predicate: Callable[[], object], *, within: float, what: str) -> float:
    """Return the seconds that passed until `predicate` was true; fail after `within` seconds, naming `what`.

    A passing test never depends on `within`, which only bounds the time until a failure is seen. The longer it lasts,
    the fewer looks a second are taken: other tests need the processor.
    """
    begin = time.monotonic()
    while not predicate():
        passed = time.monotonic() - begin
        if passed > within:
            raise AssertionError(f"not within {within} s: {what}")
        time.sleep(min(max(POLL_SECONDS, passed * POLL_SHARE), POLL_SECONDS_MAX))
    return time.monotonic() - begin


def pause() -> None:
    """Wait a moment between two tries of a test that tries again and again: the other tests need the processor."""
    time.sleep(TRY_SECONDS)
