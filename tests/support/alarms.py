"""Interrupts of the main thread by a signal."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from support.masters import Deployment


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


def interrupt_request(server: Deployment, call: Callable[[], object]) -> None:
    """Make a call, and end it by SIGUSR1 while its request is under way: the server is stopped until then."""
    server.stop()
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1))
    with pytest.raises(AlarmError):  # noqa: PT012  (on a busy machine the signal may come first)
        timer.start()
        call()
    timer.join()
    server.cont()
