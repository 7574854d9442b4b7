"""Functions for processes of multiprocessing and a pre-forking server; importable, so that they can be spawned."""

import os
import time
from pathlib import Path
from typing import Any

from support.urls import options_for

from relock import Client, Lock, RelockError


def add(urls: Any, name: str, ledger: str, rounds: int) -> None:
    """Add `rounds` to the number in a file, by read-modify-write under the lock."""
    path = Path(ledger)
    with Client(urls, **options_for(urls, {})) as client:
        for _ in range(rounds):
            with client.lock(name):
                path.write_text(str(int(path.read_text()) + 1))


def try_what_the_parent_holds(lock: Lock, results: Any) -> None:
    """Try calls of the parent's lock in a forked child, and report the outcomes."""
    try:
        lock.release()
        results.put("released")
    except RelockError as error:
        results.put(type(error).__name__)
    results.put((lock.owned(), lock.hold_count, lock.acquire(blocking=False)))
    results.put(os.getpid())


def serve(client: Client, name: str, ledger: str, rounds: int) -> None:
    """Serve as a worker of a pre-forking server, with the client that the parent made before the fork."""
    path = Path(ledger)
    for _ in range(rounds):
        with client.lock(name):
            number = int(path.read_text())
            time.sleep(0)
            path.write_text(str(number + 1))


def try_at(urls: str, name: str, results: Any) -> None:
    """Report whether another process gets the lock at once."""
    with Client(urls, **options_for(urls, {})) as client:
        results.put(client.lock(name).acquire(blocking=False))
