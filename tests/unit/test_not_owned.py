"""The error for a caller without a hold names that caller, and the caller of its client that has the lock."""

import _thread
import asyncio
import threading
from collections.abc import Callable
from typing import Any

from relock._core.book import Book
from relock._keys import LockKeys, lock_keys, permit_keys, read_keys
from relock._owner import Owner, as_reader, caller_name, current_thread, named, owner_of_permit
from relock._runtime.aio.foreground import current_task

LOCK = lock_keys("lock", "a")


class FakeHold:
    """A hold, as the book sees it."""

    def __init__(self, who: Owner, keys: LockKeys) -> None:
        self.key, self.liveness, self.loss, self.keys = who.key, who.liveness, None, keys


def error_for(holder: Owner | None, caller: Owner, keys: LockKeys = LOCK) -> str:
    """Return the text for a `caller`, where `holder` has the lock, or what else has these `keys`."""
    book: Any = Book()
    if holder is not None:
        book["a", holder.key] = FakeHold(holder, keys)
    return str(book.not_owned("a", caller))


def in_thread(name: str, call: Callable[[], Any]) -> Any:
    """Return the result of `call`, in a thread of this name."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()), name=name)
    thread.start()
    thread.join()
    return found[0]


def test_a_thread_is_told_of_the_thread_that_has_it() -> None:
    holder = current_thread()
    text = in_thread("worker", lambda: error_for(holder, current_thread()))
    assert text.startswith("'a' is held by the thread 'MainThread', and the thread 'worker' does not hold it: ")
    assert "give the lock an owner=" in text


def test_a_thread_that_has_ended_has_no_name() -> None:
    holder = in_thread("worker", current_thread)
    assert "held by a thread that has ended, and the thread 'MainThread'" in error_for(holder, current_thread())


def test_a_thread_that_threading_did_not_start_is_known_by_its_identifier() -> None:
    found: list[str] = []
    done = threading.Event()

    def run() -> None:
        who = current_thread()
        found.extend((caller_name(who.key, who.liveness), str(threading.get_ident())))
        done.set()

    _thread.start_new_thread(run, ())
    assert done.wait(10)
    assert found[0] == f"the thread {found[1]!r}"


def test_an_owner_is_named_as_the_user_named_it() -> None:
    text = error_for(named("job-7"), named("job-8"))
    assert text.startswith("'a' is held by owner='job-7', and owner='job-8' does not hold it")


async def test_an_owner_that_ends_with_a_task_is_named_as_any_other_owner() -> None:
    """The leaders of one task differ, and any task may use the hold of one: the task's name would mislead."""
    task = current_task()
    assert task is not None
    one, other = (named(f"leader-{i}")._replace(liveness=task.liveness) for i in (7, 8))
    assert error_for(one, other).startswith("'a' is held by owner='leader-7', and owner='leader-8' does not hold it")


async def test_a_task_is_told_of_a_thread() -> None:
    task = asyncio.current_task()
    caller = current_task()
    assert task is not None
    assert caller is not None
    text = error_for(in_thread("worker", current_thread), caller)
    assert f"the task {task.get_name()!r} does not hold it" in text


def test_where_nobody_of_this_client_has_it_the_sentence_is_whole() -> None:
    text = error_for(None, current_thread())
    assert text == (
        "the thread 'MainThread' does not hold 'a': a caller must acquire a lock before it can use or release it"
    )


def test_a_permit_of_the_same_name_is_no_hold_of_the_lock() -> None:
    book: Any = Book()
    permit = owner_of_permit(current_thread())
    book["a", permit.key] = FakeHold(permit, permit_keys("lock", "a"))
    assert book.of_name("a") == []
    assert "is held by" not in str(book.not_owned("a", named("job")))


def test_a_reader_is_told_so_and_does_not_have_the_lock_as_a_writer() -> None:
    reader = as_reader(named("job"))
    text = error_for(reader, named("other"), read_keys("lock", "a"))
    assert text.startswith("owner='other' does not hold 'a': ")
    assert error_for(named("job"), reader) == "owner='job' does not hold 'a' as a reader"


def test_a_permit_that_its_caller_does_not_have_was_released_or_is_another_process_s() -> None:
    text = error_for(None, owner_of_permit(current_thread()))
    assert text == "this permit of 'a' was released already, or in another process"
