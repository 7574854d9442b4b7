"""CPython's own tests of locks, on locks of relock: ``python -m workers.cpython_locks RLockTests URLS``.

The tests count the threads of the process, so they need a process of their own. Its exit code is 1 if a test fails.
"""

import itertools
import logging
import sys
import threading
import unittest
from collections.abc import Callable
from typing import Any, ClassVar

from support.until import until
from support.urls import options_for, urls_of
from test import lock_tests

from relock import Client

WITHIN = 60.0


def warm_up(client: Client) -> None:
    """Start all background threads of `client`, so that the tests see no others begin than their own."""
    lock = client.lock("warm-up")

    def take() -> None:
        with lock:
            pass

    with lock:
        thread = threading.Thread(target=take)
        thread.start()
        until(lambda: client.info(lock.name).queue, within=WITHIN, what="a caller waits")
    thread.join()
    session = client._session
    services = (session.watchdog, session.janitor, *session.hub.subscriptions)
    until(lambda: all(service.has_begun for service in services), within=WITHIN, what="all threads run")


def play(case: str, fresh_lock: Callable[[], Any]) -> unittest.TestResult:
    """Play the tests of one class."""
    base: type[unittest.TestCase] = getattr(lock_tests, case)

    class Ours(base):  # type: ignore[misc, valid-type]
        locktype: ClassVar[Any] = staticmethod(fresh_lock)
        condtype: ClassVar[Any] = staticmethod(
            lambda lock=None: threading.Condition(fresh_lock() if lock is None else lock)
        )

    return unittest.TextTestRunner(stream=sys.stdout).run(unittest.defaultTestLoader.loadTestsFromTestCase(Ours))


def main(case: str, urls: str) -> int:
    """Return the exit code of the process."""
    logging.getLogger("relock").setLevel(logging.CRITICAL)  # the thread of the log begins with a record, and ends soon
    nodes, names = urls_of(urls), itertools.count()
    with Client(nodes, **options_for(nodes, {})) as client:
        warm_up(client)
        result = play(case, lambda: client.lock(f"rlock-{next(names)}"))
    return 0 if result.wasSuccessful() and result.testsRun > 5 else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
