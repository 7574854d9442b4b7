"""Tasks of an event loop that share a thread: the one that is inside a lock is found without a lock."""

import asyncio
import gc
import sys
import weakref
from typing import Any

import pytest

from relock._core.loops import inside_already
from relock._owner import A_CALLBACK, NestedTask, may_nest, nested_task_of, running_task, runs_on, still_inside


class Task:
    """Stands for a task that a loop may run."""


ONE, TWO = Task(), Task()


@pytest.mark.parametrize(
    ("nested", "running", "may"),
    [
        (None, None, True),
        (None, ONE, True),
        (None, A_CALLBACK, True),
        (ONE, None, True),
        (ONE, ONE, True),
        (ONE, TWO, False),
        (ONE, A_CALLBACK, False),
        (A_CALLBACK, A_CALLBACK, True),
        (A_CALLBACK, ONE, False),
        (A_CALLBACK, None, True),
    ],
)
def test_which_task_may_enter_on_top_of_which(nested: object, running: object, *, may: bool) -> None:
    assert may_nest(nested_task_of(nested, 0), running) is may


def test_a_task_that_has_ended_is_nobody_elses_twin() -> None:
    """Tasks that have ended are no twins of a task that got their id, nor of a callback, which has no task."""
    gone = Task()
    nested = nested_task_of(gone, 0)
    assert nested is not None
    del gone
    gc.collect()
    assert nested.task() is None
    assert not may_nest(nested, Task())
    assert not may_nest(nested, A_CALLBACK)


def error_of(nested: object) -> str:
    return str(inside_already("a", nested_task_of(nested, 0), A_CALLBACK))


def test_a_refused_task_is_told_whether_the_other_one_is_inside_or_has_ended() -> None:
    async def nothing() -> None: ...

    async def main() -> None:
        task = asyncio.create_task(nothing())
        assert "both would be inside" in error_of(task)
        await task
        text = error_of(task)
        assert f"{task!r}, which has ended without releasing it" in text
        assert "release it first" in text
        assert "owner=" in text
        assert "both would be inside" not in text

    asyncio.run(main())
    nested = nested_task_of(Task(), 0)
    gc.collect()
    assert "a task, which has ended without releasing it" in str(inside_already("a", nested, ONE))
    for other in (ONE, A_CALLBACK):  # as far as is known, neither has ended
        assert f"held by {other!r}" in error_of(other)
        assert "both would be inside" in error_of(other)


@pytest.mark.parametrize(("count", "inside"), [(1, False), (2, False), (3, True), (4, True)])
def test_a_task_is_inside_while_there_are_levels_above_those_it_found(count: int, *, inside: bool) -> None:
    nested = NestedTask(weakref.ref(ONE), 2)
    assert still_inside(nested, count) is (nested if inside else None)
    assert still_inside(None, count) is None


def test_a_thread_without_a_loop_runs_no_task() -> None:
    assert running_task() is None


def test_a_loop_runs_a_task_or_a_callback() -> None:
    seen: list[object] = []

    async def look() -> None:
        asyncio.get_running_loop().call_soon(lambda: seen.append(running_task()))
        await asyncio.sleep(0)
        seen.append(running_task())
        seen.append(asyncio.current_task())
        seen.append(await asyncio.to_thread(running_task))

    asyncio.run(look())
    assert seen[0] is A_CALLBACK
    assert seen[1] is seen[2]
    assert seen[3] is None


@pytest.mark.skipif(sys.version_info < (3, 12), reason="this Python has no eager tasks")
def test_an_eager_task_is_not_the_one_that_starts_it() -> None:
    seen: list[object] = []

    async def note() -> None:
        seen.append(running_task())

    async def start() -> None:
        asyncio.get_running_loop().set_task_factory(vars(asyncio)["eager_task_factory"])
        seen.append(running_task())
        eager = asyncio.create_task(note())
        seen.append(running_task())
        await eager

    asyncio.run(start())
    assert seen[0] is seen[2]
    assert seen[1] is not seen[0]
    assert isinstance(seen[1], asyncio.Task)


def test_a_task_of_any_implementation_is_known_to_run_on_its_loop() -> None:
    """Task factories may make tasks of another class than asyncio's, which is written in C."""

    async def work() -> None: ...

    made: Any = asyncio.tasks
    loop, other = asyncio.new_event_loop(), asyncio.new_event_loop()
    for kind in (asyncio.Task, made._PyTask):
        task = kind(work(), loop=loop)
        assert runs_on(task, loop)
        assert not runs_on(task, other)
        loop.run_until_complete(task)
    assert not runs_on(object(), loop)
    loop.close()
    other.close()
