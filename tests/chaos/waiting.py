"""Waits for something that is about to happen, but not for ever."""

import time
from collections.abc import Callable

from chaos.history import clock

LOOK_SECONDS = 0.005


def wait_until(predicate: Callable[[], object], seconds: float) -> bool:
    """Looks until `predicate` is true, for so many seconds at most; returns whether it was."""
    end = clock() + seconds
    while not predicate():
        if clock() > end:
            return False
        time.sleep(LOOK_SECONDS)
    return True
