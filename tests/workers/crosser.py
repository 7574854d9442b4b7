"""A process whose only thread takes one lock after the other, by orders: one JSON object a line.

In: ``{"do": "acquire", "name": "a"}``; ``{"do": "release"}``, which releases all. Out: ``{"event": "ready"}``,
``granted``, ``deadlock`` with the error's ``lock`` and ``cycle``, or ``released``.
"""

import json
import sys
from typing import Any

from support.urls import options_for, urls_of

from relock import Client, DeadlockError, Lock


def say(**thing: Any) -> None:
    print(json.dumps(thing), flush=True)


def main() -> None:
    urls, held = urls_of(sys.argv[1]), list[Lock]()
    with Client(urls, **options_for(urls, json.loads(sys.argv[2]))) as client:
        say(event="ready")
        for line in sys.stdin:
            order = json.loads(line)
            if order["do"] == "release":
                while held:
                    held.pop().release()
                say(event="released")
                continue
            lock = client.lock(order["name"])
            try:
                lock.acquire()
            except DeadlockError as error:
                say(event="deadlock", lock=error.lock, cycle=error.cycle)
            else:
                held.append(lock)
                say(event="granted", lock=order["name"])


if __name__ == "__main__":
    main()
