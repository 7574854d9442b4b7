"""A block whose body has failed, and which then fails to release: the body's error goes on, and the other is kept."""

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from contract.rigs.rig import Rig
from relock import Client, Lock, LockLostError, NotOwnedError, RelockError

LOGGER = "relock.lock"


class Warnings(logging.Handler):
    """Handler that keeps the warnings of the doors."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the record."""
        self.texts.append(record.getMessage())


@pytest.fixture
def logged() -> Iterator[Warnings]:
    """Collect the warnings of the doors."""
    handler = Warnings()
    logging.getLogger(LOGGER).addHandler(handler)
    yield handler
    logging.getLogger(LOGGER).removeHandler(handler)


def lose(lock: Lock) -> None:
    """Let an operator end the caller's hold, and let the caller find out."""
    lock.force_release()
    with suppress(LockLostError):
        lock.extend()
    assert lock.lost


#: Ways in which a body finds its hold lost, each with the error that leaving the block then raises.
FAILURES: dict[type[RelockError], Callable[[Lock], None]] = {
    LockLostError: lose,
    NotOwnedError: lambda lock: lock.release(),
}


class OwnError(Exception):
    """An error that the body itself raises."""


class NoNotesError(OwnError):
    """An error that takes no notes."""

    def add_note(self, note: str, /) -> None:
        raise TypeError(note)


def fail(lock: Lock, do: Callable[[Lock], object], error: type[OwnError]) -> None:
    """Do something in a block, and then end its body by an error."""
    with lock:
        do(lock)
        raise error


def find_out(lock: Lock, do: Callable[[Lock], object], again: Callable[[Lock], object]) -> None:
    """Do something in a block, and then call what finds the loss again."""
    with lock:
        do(lock)
        again(lock)


each_failure = pytest.mark.parametrize(
    ("failure", "do"), FAILURES.items(), ids=lambda one: getattr(one, "__name__", "")
)


@each_failure
def test_beside_the_body_s_error_it_is_a_note_and_a_warning(
    failure: type[RelockError], do: Callable[[Lock], None], rig: Rig, name: str, logged: Warnings
) -> None:
    lock = rig.client().lock(name)
    with pytest.raises(OwnError) as raised:
        fail(lock, do, OwnError)
    (note,) = raised.value.__notes__
    assert failure.__name__ in note
    assert repr(name) in note
    rig.until(lambda: logged.texts, "the text is logged")
    (text,) = logged.texts
    assert failure.__name__ in text
    assert "OwnError" in text
    rig.until_free(name, "the block")


@each_failure
def test_an_error_that_takes_no_note_is_not_replaced(
    failure: type[RelockError], do: Callable[[Lock], None], rig: Rig, name: str, logged: Warnings
) -> None:
    with pytest.raises(NoNotesError):
        fail(rig.client().lock(name), do, NoNotesError)
    rig.until(lambda: logged.texts, "the text is logged")
    assert failure.__name__ in logged.texts[0]


@each_failure
def test_the_same_error_is_told_once(
    failure: type[RelockError], do: Callable[[Lock], None], rig: Rig, name: str, logged: Warnings
) -> None:
    """The body finds the loss by itself, and ends by just that error."""
    with pytest.raises(failure) as raised:
        find_out(rig.client().lock(name), do, lambda lock: lock.release() if do is not lose else lock.ensure())
    assert not hasattr(raised.value, "__notes__")
    assert not logged.texts


def test_a_block_that_is_left_well_says_nothing(rig: Rig, name: str, logged: Warnings) -> None:
    lock = rig.client().lock(name)
    with pytest.raises(OwnError) as raised:
        fail(lock, lambda lock: lock.owned(), OwnError)
    assert not hasattr(raised.value, "__notes__")
    with pytest.raises(NotOwnedError), lock:
        lock.release()
    assert not logged.texts


@each_failure
def test_it_is_raised_where_a_generator_is_closed(
    failure: type[RelockError], do: Callable[[Lock], None], rig: Rig, name: str
) -> None:
    lock = rig.client().lock(name)

    def hold() -> Iterator[None]:
        with lock:
            do(lock)
            yield

    generator = hold()
    next(generator)
    with pytest.raises(failure):
        generator.close()  # type: ignore[attr-defined]


def test_a_thread_that_closes_what_another_one_has_begun_is_told(rig: Rig, name: str) -> None:
    client: Client = rig.client()
    lock = client.lock(name)

    def hold() -> Iterator[None]:
        with lock:
            yield

    generator = hold()
    next(generator)
    with pytest.raises(NotOwnedError, match=repr(name)):
        rig.start(generator.close).result()  # type: ignore[attr-defined]
    assert lock.owned(), "the thread that began the hold still has it"
    lock.release()
    rig.until_free(name, "the release")
