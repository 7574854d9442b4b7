"""Checks for gevent and eventlet, which replace threads and sockets by greenlets; relock supports neither."""

import queue
import sys
import threading

from relock._errors import ConfigurationError

_PATCHERS = (("gevent", "gevent.monkey", "saved"), ("eventlet", "eventlet.patcher", "already_patched"))
_REPLACED = frozenset({"socket", "select", "thread", "_thread", "threading", "queue"})
# The rest of the package uses both as they were when relock was imported.
_OURS = threading.local, queue.SimpleQueue


def patched_by() -> str | None:
    """Return which of gevent and eventlet has replaced something that relock needs; None where neither has."""
    for name, module, record in _PATCHERS:
        if module in sys.modules and not _REPLACED.isdisjoint(getattr(sys.modules[module], record, ())):
            return name
    return None


def replaced_threads() -> str | None:
    """Return an error text where greenlets have replaced the threads since relock was imported, else None.

    relock would have greenlets wait as threads do, which keeps all of them from going on, and would take all of them
    for one owner.
    """
    if (threading.local, queue.SimpleQueue) == _OURS:
        return None
    return (
        f"{patched_by() or 'something'} has replaced Python's threads since relock was imported: greenlets that wait "
        "for a lock would hang, and would count as one owner. relock supports neither gevent nor eventlet: use "
        "threads, or relock.AsyncClient with asyncio"
    )


def check_threads() -> None:
    """Raise `ConfigurationError` where greenlets have replaced the threads."""
    text = replaced_threads()
    if text is not None:
        raise ConfigurationError(text)


def warning_of_greenlets() -> str | None:
    """Return a warning where gevent or eventlet has replaced something that relock needs, else None."""
    name = patched_by()
    return (
        None
        if name is None
        else (
            f"{name} has replaced Python's threads or sockets: relock does not support that and is not tested with it. "
            "A greenlet that does not yield keeps the watchdog from renewing"
        )
    )
