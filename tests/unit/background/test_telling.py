"""Log records and callbacks are told on threads of their own: in order, with the values of the call, within bounds."""

import contextvars
import gc
import logging
import os
import subprocess
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.until import until

from relock import RelockWarning
from relock._runtime.background import telling
from relock._runtime.background.telling import CallbackQueue, Log, warn_caller
from relock._runtime.machine import Machine

WITHIN = 20.0
LOGGER = logging.getLogger("relock.test")


class Kept(logging.Handler):
    """Handler that keeps the records, and the thread of each."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.threads: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        self.threads.add(threading.current_thread().name)
        self.records.append(record)


@pytest.fixture
def kept() -> Iterator[Kept]:
    handler = Kept()
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    yield handler
    LOGGER.removeHandler(handler)
    LOGGER.setLevel(logging.NOTSET)


@pytest.fixture
def log() -> Log:
    """A log of the test's own."""
    return Machine().log


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only a few records wait."""
    monkeypatch.setattr(telling, "WAITING_MAX", 10)
    monkeypatch.setattr(telling, "ORDINARY_MAX", 8)


class Gate:
    """A callback that hangs until the test opens it."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, _: object) -> None:
        self.reached.set()
        assert self.opened.wait(WITHIN)


# The log --------------------------------------------------------------------------------------------------------------


def test_a_record_is_as_if_it_had_been_logged_on_the_spot(kept: Kept, log: Log) -> None:
    gate = Gate()
    log.hand(gate, None)
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        log.warning(LOGGER, "it is %s", "so", exc_info=True)
        LOGGER.warning("it is %s", "so", exc_info=True)
    made_by = threading.current_thread()
    gate.opened.set()
    log.settle(WITHIN)
    here, there = kept.records
    assert "relock-log" in kept.threads
    assert there.created <= here.created, "a record has the time of the call, not that of its telling"
    assert here.created - there.created < 1.0
    for name in ("name", "levelno", "pathname", "funcName", "thread", "threadName", "process", "exc_info", "args"):
        assert getattr(there, name) == getattr(here, name), name
    assert there.lineno == here.lineno - 1
    assert there.threadName == made_by.name
    assert there.getMessage() == "it is so"


def test_a_filter_finds_the_context_variables_of_the_caller(kept: Kept, log: Log) -> None:
    request = contextvars.ContextVar[str]("request")

    def note(record: logging.LogRecord) -> bool:
        record.request = request.get("none")
        return True

    kept.addFilter(note)
    request.set("of the caller")
    log.warning(LOGGER, "a")
    log.settle(WITHIN)
    assert kept.records[0].request == "of the caller"  # type: ignore[attr-defined]


def test_the_users_way_of_making_records_is_kept_and_not_called_by_the_caller(kept: Kept, log: Log) -> None:
    made_on: list[str] = []
    before = logging.getLogRecordFactory()

    def make(*words: Any, **options: Any) -> logging.LogRecord:
        made_on.append(threading.current_thread().name)
        return before(*words, **options)

    logging.setLogRecordFactory(make)
    try:
        log.warning(LOGGER, "a")
        log.settle(WITHIN)
    finally:
        logging.setLogRecordFactory(before)
    assert made_on == ["relock-log"]


def test_what_is_disabled_is_not_even_made(kept: Kept, log: Log) -> None:
    log.debug(LOGGER, "a")
    assert not log.running
    assert log._waiting.empty()


def test_a_thread_with_the_lock_of_the_logging_module_keeps_no_other_from_going_on(kept: Kept, log: Log) -> None:
    """A thread that configures the log anew holds that lock, while it waits for the old handlers.

    The end of a handler needs the lock, too. So no handler of another test may be collected on the thread under test.
    """
    held, over, written = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        with logging._lock:  # type: ignore[attr-defined]
            held.set()
            over.wait(2 * WITHIN)

    def write() -> None:
        log.warning(LOGGER, "a")
        written.set()

    LOGGER.setLevel(logging.INFO)  # makes the logger forget which levels are enabled
    holding, writing = threading.Thread(target=hold), threading.Thread(target=write)
    gc.disable()
    try:
        holding.start()
        assert held.wait(WITHIN)
        writing.start()
        is_written = written.wait(WITHIN)
    finally:
        over.set()
        gc.enable()
    writing.join()
    holding.join()
    assert is_written


def test_a_filter_that_raises_harms_nothing(kept: Kept, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", printed.append)

    def fail(_: logging.LogRecord) -> bool:
        raise ZeroDivisionError

    LOGGER.addFilter(fail)
    log.warning(LOGGER, "a")
    log.settle(WITHIN)
    LOGGER.removeFilter(fail)
    log.warning(LOGGER, "b")
    log.settle(WITHIN)
    assert [told.exc_type for told in printed] == [ZeroDivisionError]
    assert [record.getMessage() for record in kept.records] == ["b"]


def test_the_thread_of_the_log_ends_when_there_is_nothing_more_and_begins_again(
    kept: Kept, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling, "IDLE_SECONDS", 0.0)
    for _ in range(3):
        log.warning(LOGGER, "a")
        until(
            lambda: log._waiting.empty() and not log.running,
            within=WITHIN,
            what="the record is told, and the thread has ended",
        )
    assert len(kept.records) == 3


def test_what_comes_when_the_thread_is_about_to_end_is_told(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread has found nothing, but still runs, so no caller starts another one."""
    monkeypatch.setattr(telling, "IDLE_SECONDS", 0.0)
    threads: list[Callable[[], object]] = []

    class Still(Machine):
        def start(self, target: Callable[[], object], name: str) -> None:  # noqa: ARG002
            threads.append(target)

    log = Still().log

    class Last(Log):
        def step(self) -> None:
            super().step()
            if self._is_idle and not kept.records:
                self.warning(LOGGER, "a")

    last = Last(log._platform)
    last._run()
    assert len(kept.records) == 1
    assert not threads


def test_where_no_thread_can_be_had_the_caller_tells(kept: Kept) -> None:
    class Full(Machine):
        def start(self, target: Callable[[], object], name: str) -> None:  # noqa: ARG002
            raise RuntimeError("can't start new thread")

    Full().log.warning(LOGGER, "a")
    assert [record.getMessage() for record in kept.records] == ["a"]


SCRIPT = """
import contextlib, logging, os, sys, threading, time
from relock._runtime.machine import THREADS

class Slow(logging.Handler):
    def createLock(self):
        self.lock = contextlib.nullcontext()  # or `logging` itself would wait for it at the end

    def acquire(self):  # in `with self.lock`, as of 3.13, or by this
        pass

    release = acquire

    def emit(self, record):
        if sys.argv[1] == 'hangs':
            threading.Event().wait()
        time.sleep(0.05)
        os.write(1, record.getMessage().encode() + b'\\n')

logger = logging.getLogger('relock.test')
logger.addHandler(Slow())
for number in range(3):
    THREADS.log.warning(logger, str(number))
if sys.argv[1] == 'fork':
    if not os.fork():
        THREADS.log.warning(logger, 'child')
        THREADS.log.settle(20)
        os._exit(0)
    os.wait()
"""


@pytest.mark.parametrize(
    ("case", "told"), [("ends", ["0", "1", "2"]), ("hangs", []), ("fork", ["0", "1", "2", "child"])]
)
def test_what_was_logged_last_is_told_before_the_interpreter_ends(case: str, told: list[str]) -> None:
    """Interpreters do not wait long for the log. A forked child tells its own records, and not its parent's."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-W", "ignore", "-c", SCRIPT, case]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=60, check=True)
    assert sorted(done.stdout.split()) == told


# Bounds ---------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("few")
def test_what_is_too_much_is_dropped_and_counted_and_that_is_said_twice(caplog: pytest.LogCaptureFixture) -> None:
    gate, told = Gate(), list[object]()
    platform = Machine()
    queue = CallbackQueue(platform, "relock-events")
    queue.hand(gate, None)
    assert gate.reached.wait(WITHIN)
    for number in range(20):
        queue.hand(told.append, number, is_ordinary=True)
    for number in range(20, 40):
        queue.hand(told.append, number)
    assert queue.dropped == 40 - 10
    platform.log.settle(WITHIN)
    assert [record.getMessage() for record in caplog.records] == [
        "relock-events can't keep up, because of a callback or a handler that hangs: some are dropped"
    ]
    gate.opened.set()
    queue.settle(WITHIN)
    platform.log.settle(WITHIN)
    assert told == [*range(8), 20, 21], "important events have room where ordinary ones have none"
    assert caplog.records[1].getMessage() == "relock-events goes on; 30 were dropped"
    assert len(caplog.records) == 2
    queue.stop()


@pytest.mark.parametrize(("is_ordinary", "waiting_max"), [(True, 9_000), (False, 10_000)])
def test_ordinary_items_are_dropped_from_9_000_on_and_all_others_from_10_000_on(
    is_ordinary: bool, waiting_max: int
) -> None:
    gate, platform = Gate(), Machine()
    queue = CallbackQueue(platform, "relock-events")
    queue.hand(gate, None)
    assert gate.reached.wait(WITHIN)
    for handed in range(waiting_max):
        queue.hand(str, handed, is_ordinary=is_ordinary)
    assert queue.dropped == 0
    for _ in range(3):
        queue.hand(str, None, is_ordinary=is_ordinary)
    assert queue.dropped == 3
    gate.opened.set()
    queue.settle(WITHIN)
    platform.log.settle(WITHIN)  # or the next test would see this one's last message
    queue.stop()


@pytest.mark.usefixtures("few")
def test_a_log_that_hangs_says_what_it_dropped_when_it_goes_on(kept: Kept, log: Log) -> None:
    gate = Gate()
    log.hand(gate, None)
    assert gate.reached.wait(WITHIN)
    telling_logger = logging.getLogger("relock.callbacks")
    telling_logger.addHandler(kept)
    for _ in range(30):
        log.write(LOGGER, logging.INFO, "a")
    gate.opened.set()
    log.settle(WITHIN)
    telling_logger.removeHandler(kept)
    assert log.dropped == 22
    assert [record.getMessage() for record in kept.records] == [
        *["a"] * 8,
        "relock-log can't keep up, because of a callback or a handler that hangs: some are dropped",
        "relock-log goes on; 22 were dropped",
    ]


def test_settling_waits_no_longer_than_it_may_and_never_for_itself(log: Log) -> None:
    gate = Gate()
    seconds: list[float] = []

    def settle(_: object) -> None:
        began = time.monotonic()
        log.settle(WITHIN)
        seconds.append(time.monotonic() - began)

    log.hand(settle, None)
    log.settle(WITHIN)
    assert seconds[0] < WITHIN / 2
    log.hand(gate, None)
    log.settle(0.0)
    gate.opened.set()


# Warnings -------------------------------------------------------------------------------------------------------------


def test_a_warning_that_is_an_error_harms_no_thread(log: Log) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        log.warn("a")
        log.settle(WITHIN)


def test_a_caller_is_warned_of_everything_but_not_instead_of_an_error() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_caller(deque(["a", "b"]), 2, None)
    assert [str(warning.message) for warning in caught] == ["a", "b"]
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_caller(deque(["a"]), 2, KeyError())
        with pytest.raises(RelockWarning):
            warn_caller(deque(["a"]), 2, None)
