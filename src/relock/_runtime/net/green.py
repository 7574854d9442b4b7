"""Checks for gevent and eventlet, which replace threads and sockets by greenlets; relock supports neither."""

import queue
import sys
import threading

from relock._errors import ConfigurationError

_PATCHERS = (("gevent", "gevent.monkey", "saved"), ("eventlet", "eventlet.patcher", "already_patched"))
_REPLACED = frozenset({"socket", "select", "thread", "_thread", "threading", "queue"})
# Both as they were when relock was imported, which is how the rest of the package uses them.
_OURS = threading.local, queue.SimpleQueue


def patched_by() -> str | None:
    """Return the name of gevent or eventlet if it has replaced a module that relock needs; else None."""
    for name, module, record in _PATCHERS:
        if module in sys.modules and not _REPLACED.isdisjoint(getattr(sys.modules[module], record, ())):
            return name
    return None


def replaced_threads() -> str | None:
    """Return an error text if greenlets have replaced the threads since relock was imported, else None.

    A greenlet that waits like a thread would block all other greenlets, and all greenlets would count as one owner.
    """
    if (threading.local, queue.SimpleQueue) == _OURS:
        return None
    return (
        f"{patched_by() or 'something'} has replaced Python's threads since relock was imported: greenlets that wait "
        "for a lock would hang, and would count as one owner. relock supports neither gevent nor eventlet: use "
        "threads, or relock.AsyncClient with asyncio"
    )


def check_threads() -> None:
    """Raise `ConfigurationError` if greenlets have replaced the threads."""
    text = replaced_threads()
    if text is not None:
        raise ConfigurationError(text)


def warning_of_greenlets() -> str | None:
    """Return a warning if gevent or eventlet has replaced a module that relock needs, else None."""
    name = patched_by()
    return (
        None
        if name is None
        else (
            f"{name} has replaced Python's threads or sockets: relock does not support that and is not tested with it. "
            "A greenlet that does not yield keeps the watchdog from renewing"
        )
    )
