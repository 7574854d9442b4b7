"""Waiting for something to become true, instead of sleeping and hoping."""

import time
from collections.abc import Callable

POLL_SECONDS = 0.003


def until(predicate: Callable[[], object], *, within: float, what: str) -> float:
    """Returns the seconds that passed until `predicate` was true; fails after `within` seconds, naming `what`.

    A test that passes never depends on `within`: it only bounds how long a failure takes to be seen.
    """
    begin = time.monotonic()
    while not predicate():
        if time.monotonic() - begin > within:
            raise AssertionError(f"not within {within} s: {what}")
        time.sleep(POLL_SECONDS)
    return time.monotonic() - begin
