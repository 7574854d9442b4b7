"""A wait for something that is about to happen, with a limit."""

import time
from collections.abc import Callable

from chaos.history import clock

LOOK_SECONDS = 0.005


def wait_until(predicate: Callable[[], object], seconds: float) -> bool:
    """Look until `predicate` is true, for so many seconds at most; return whether it was."""
    end = clock() + seconds
    while not predicate():
        if clock() > end:
            return False
        time.sleep(LOOK_SECONDS)
    return True
