"""Interrupts of the main thread by a signal."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class AlarmError(Exception):
    """Exception that the signal's handler raises."""


def _ring(_number: int, _frame: object) -> None:
    raise AlarmError


@contextmanager
def alarms_on(number: int) -> Iterator[None]:
    """Let a signal of this number raise `AlarmError` within the block."""
    before = signal.signal(number, _ring)
    try:
        yield
    finally:
        signal.signal(number, before)
