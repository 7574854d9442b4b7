"""A process whose threads acquire and release by orders, one JSON object a line.

In: ``{"do": "acquire", "id": 1, "name": "a", "timeout": 5, "hold": 0.0}``, ``{"do": "release", "id": 1}``, ``{"do":
"fork"}`` (a child that lives on and does nothing). With ``names`` in place of ``name``, all of these locks at once;
with ``limit``, a permit of a semaphore; with ``side``, the ``read`` or ``write`` of a read-write lock.

Out: ``{"id": 1, "event": "granted", "token": 7}`` and ``released``, ``refused``, ``lost``, ``error``, each with the
time of CLOCK_MONOTONIC, which all processes share. With ``hold`` a thread releases by itself after so many seconds;
without it, by an order.
"""

import json
import os
import sys
import threading
import time
from typing import Any

from support.urls import options_for, urls_of

from relock import Client, RelockError

_write = threading.Lock()


def say(**thing: Any) -> None:
    with _write:
        print(json.dumps({**thing, "at": time.monotonic()}), flush=True)


class Locker:
    """All threads of one process, by id."""

    def __init__(self, urls: Any, **options: Any) -> None:
        self._client = Client(urls, on_lost=self._lost, **options_for(urls, options))
        self._release: dict[int, threading.Event] = {}

    def _lost(self, loss: Any) -> None:
        say(id=None, event="lost", reason=loss.reason, token=loss.token)

    def do(self, order: dict[str, Any]) -> None:
        if order["do"] == "acquire":
            self._release[order["id"]] = threading.Event()
            threading.Thread(target=self._acquire, args=(order,), daemon=True).start()
        elif order["do"] == "release":
            self._release[order["id"]].set()
        elif order["do"] == "fork":
            self._fork()

    def _acquire(self, order: dict[str, Any]) -> None:
        options = order.get("options", {})
        lock: Any
        if "names" in order:
            lock = self._client.lock_all(order["names"])
        elif "limit" in order:
            lock = self._client.semaphore(order["name"], order["limit"], **options)
        elif "side" in order:
            lock = getattr(self._client.rwlock(order["name"], **options), order["side"])
        else:
            lock = self._client.lock(order["name"], **options)
        try:
            taken = lock.acquire(timeout=order.get("timeout", -1))
            if not taken:
                say(id=order["id"], event="refused")
                return
            lock = taken if "limit" in order else lock
            say(id=order["id"], event="granted", token=lock.token)
            self._release[order["id"]].wait(order.get("hold"))
            say(id=order["id"], event="releasing")
            lock.release()
            say(id=order["id"], event="released")
        except RelockError as error:
            say(id=order["id"], event="error", error=type(error).__name__, message=str(error))

    def _fork(self) -> None:
        told, tell = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(tell, b"x")  # the child has closed its copies of the connections
            sys.stdout.close()
            while os.getppid() != 1:
                time.sleep(0.05)
            time.sleep(30)
            os._exit(0)
        os.read(told, 1)
        say(id=None, event="forked", child=child)


def main() -> None:
    locker = Locker(urls_of(sys.argv[1]), **json.loads(sys.argv[2] if len(sys.argv) > 2 else "{}"))
    say(id=None, event="ready")
    for line in sys.stdin:
        locker.do(json.loads(line))


if __name__ == "__main__":
    main()
