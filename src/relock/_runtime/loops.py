"""What a caller is told that uses a lock for threads on the thread of an event loop."""

from relock._owner import Taker

INSTEAD = (
    "relock has no asyncio client yet: do all that needs the lock in a function of its own, and call that by "
    "asyncio.to_thread"
)


def inside_already(name: str, taker: Taker | None, running: object) -> RuntimeError:
    """The error for a task (or callback) that would come in on top of another one of its thread."""
    first = None if taker is None else taker.task()
    who = "a task that has ended" if first is None else repr(first)
    return RuntimeError(
        f"{name!r} is held by {who}, and a hold belongs to the thread: with a nested acquire by {running!r} both would "
        f"be inside. {INSTEAD}. Tasks that are to share one hold name the same owner="
    )


def text_of_wait(name: str) -> str:
    """What the caller is told that is about to wait for the lock `name`, and the event loop of its thread with it."""
    return (
        f"this wait for {name!r} blocks the event loop of its thread: nothing else runs there until it ends, and a "
        f"task of that loop that has the lock can't release it. {INSTEAD}"
    )
