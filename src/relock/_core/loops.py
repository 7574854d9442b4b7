"""Use of a lock for threads on a thread that runs an event loop: its tasks share its holds, so one task at a time."""

from collections.abc import Callable

from relock._core.hold import Hold
from relock._owner import NestedTask, may_nest, nested_task_of, still_inside

INSTEAD = (
    "Tasks use a lock of relock.AsyncClient; or do all that needs this one in a function of its own, and call that by "
    "asyncio.to_thread"
)


def let_in(hold: Hold, running: object | None) -> None:
    """Let the running task or callback in on a level of the thread's hold, unless another task is inside.

    Raises:
        RuntimeError: another task is inside.
    """
    nested = still_inside(hold.entered_by, hold.count)
    if not may_nest(nested, running):
        raise inside_already(hold.keys.name, nested, running)
    hold.entered_by = nested or nested_task_of(running, hold.count)


def inside_already(name: str, nested: NestedTask | None, running: object) -> RuntimeError:
    """Return the error for a task or callback that would nest in the hold of another one of its thread."""
    first = None if nested is None else nested.task()
    if first is None or _is_done(first):
        who = "a task" if first is None else repr(first)
        why = f"{name!r} was taken by {who}, which has ended without releasing it: another task can't nest in that hold"
        return RuntimeError(f"{why}, release it first. Tasks that are to share one hold name the same owner=")
    return RuntimeError(
        f"{name!r} is held by {first!r}, and a hold belongs to the thread: with a nested acquire by {running!r} both "
        f"would be inside. {INSTEAD}. Tasks that are to share one hold name the same owner="
    )


def _is_done(first: object) -> bool:
    """Return whether `first` is a task that has ended; `A_CALLBACK` is no task, and its end is not known."""
    done: Callable[[], bool] | None = getattr(first, "done", None)
    return done is not None and done()


def text_of_wait(name: str) -> str:
    """Return the warning that a wait for the lock `name` blocks the event loop of the caller's thread."""
    return (
        f"this wait for {name!r} blocks the event loop of its thread: nothing else runs there until it ends, and a "
        f"task of that loop that has the lock can't release it. {INSTEAD}"
    )
