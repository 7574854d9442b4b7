"""Background threads: one that can't start, and one whose step fails again and again."""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from support.until import until

from relock._errors import ClientClosedError
from relock._runtime.background.telling import CallbackQueue
from relock._runtime.machine import THREADS, Machine
from relock._runtime.service import Service

LOGGER = "relock.background"


def said(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return the log above DEBUG, after its thread, which may still run from an earlier test, has told all records."""
    THREADS.log.settle(20)
    return [record for record in caplog.records if record.levelno >= logging.WARNING]


class Counting(Service):
    """Service whose step counts, and raises the test's error."""

    name = "relock-counting"

    def __init__(self, error: Exception) -> None:
        super().__init__(THREADS)
        self.error = error
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        raise self.error


@pytest.fixture
def run() -> Iterator[Callable[[Exception], Counting]]:
    """Start services that are stopped with the test."""
    made: list[Counting] = []

    def start(error: Exception) -> Counting:
        service = Counting(error)
        made.append(service)
        service.ensure()
        return service

    yield start
    for service in made:
        service.stop()
        service.join(5)


@pytest.mark.parametrize("error", [ClientClosedError("closed"), ValueError("wrong"), RuntimeError("closed")])
def test_a_step_that_fails_at_once_again_and_again_keeps_no_core_busy(
    run: Callable[[Exception], Counting], error: Exception
) -> None:
    begin = time.monotonic()
    service = run(error)
    time.sleep(0.5)
    until(lambda: service.steps, within=20, what="the service has begun")
    assert service.steps <= 8 * (time.monotonic() - begin) / 0.5


def test_that_the_client_is_closed_is_no_failure(
    run: Callable[[Exception], Counting], caplog: pytest.LogCaptureFixture
) -> None:
    service = run(ClientClosedError("closed"))
    until(lambda: service.steps > 1, within=20, what="the step has failed twice")
    assert not said(caplog)


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Let no thread start, as in a process or a container at its limit."""

    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    return monkeypatch


def test_a_thread_that_can_not_be_started_is_warned_of_once(
    no_threads: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service = Counting(ValueError())
    for _ in range(3):
        service.ensure()
    (record,) = said(caplog)
    assert record.name == LOGGER
    assert "relock-counting" in record.getMessage()
    assert record.exc_info is not None
    assert not service.running
    no_threads.undo()
    service.ensure()
    service.stop()
    service.join(5)
    assert service.steps == 1


def test_it_is_warned_of_again_when_it_had_worked_meanwhile(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service = Counting(ValueError())
    start = threading.Thread.start
    for works in (False, True, False):

        def attempt(thread: threading.Thread, works: bool = works) -> None:
            if not works:
                raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", attempt)
        service.ensure()
    monkeypatch.setattr(threading.Thread, "start", start)
    assert len(said(caplog)) == 2


def test_at_the_end_of_the_interpreter_nothing_is_said(
    no_threads: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    no_threads.setattr(sys, "is_finalizing", lambda: True)
    Counting(ValueError()).ensure()
    assert not said(caplog)


def test_handlers_that_run_at_the_end_of_the_interpreter_are_not_told_either(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Interpreters do not count as ending then, but Python from 3.12 on starts no thread any more."""

    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", start)
    service = Counting(ValueError())
    assert not service.ensure()
    monkeypatch.undo()
    assert not said(caplog)


def test_callbacks_that_were_handed_in_are_called_though_their_thread_comes_to_run_only_after_the_end() -> None:
    started: list[Callable[[], object]] = []
    called: list[str] = []

    class Late(Machine):
        def start(self, target: Callable[[], object], name: str) -> None:  # noqa: ARG002
            started.append(target)

    callbacks = CallbackQueue(Late(), "relock-losses")
    callbacks.hand(called.append, "lost")
    callbacks.stop()
    for target in started:
        target()
    assert called == ["lost"]
    assert callbacks.stopping
