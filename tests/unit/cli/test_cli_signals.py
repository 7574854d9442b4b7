"""Signals that strike where Python ignores exceptions: they end what they should end a moment later."""

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from relock.cli._signals import ENDING, FORWARDED, Interrupted, Signals, ended_by_signals


class Finalized:
    """Object whose finalizer a signal strikes."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)  # Python handles the signal before this returns


@pytest.fixture(autouse=True)
def _handlers_are_put_back() -> Iterator[None]:
    before = {signum: signal.getsignal(signum) for signum in {*ENDING, *FORWARDED, signal.SIGCHLD}}
    yield
    signal.set_wakeup_fd(-1)
    for signum, handler in before.items():
        signal.signal(signum, handler)


def strike_a_finalizer() -> None:
    Finalized()
    threading.Event().wait(10)
    pytest.fail("the signal was lost")


def test_a_block_is_ended_by_a_signal_that_strikes_a_finalizer() -> None:
    with pytest.raises(Interrupted), ended_by_signals():
        strike_a_finalizer()


def test_a_wait_for_the_lock_is_ended_by_a_signal_that_strikes_a_finalizer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.unraisablehook", print)  # put back after the test
    signals = Signals()
    signals.install()
    with pytest.raises(Interrupted):
        strike_a_finalizer()


def test_other_errors_of_finalizers_go_where_they_went(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong:
        def __del__(self) -> None:
            raise ValueError

    ignored: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", ignored.append)
    with ended_by_signals():
        Wrong()
    Wrong()
    assert len(ignored) == 2
