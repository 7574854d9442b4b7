"""A process of threads that wait: ``python -m bench.sleepers event|lock|burst|locks COUNT URL``.

Its threads wait for a `threading.Event`, for one lock, or each for a lock of its own; they come one after the other, or
in a burst. Either way it has a client that has acquired and released once. It says when it has started them, and ends
with its stdin.
"""

import json
import sys
import threading
import time

from relock import Client

PREFIX = "sleepers"
PAUSE_SECONDS = 0.005  # from one to the next


def name_of(kind: str, number: int) -> str:
    """What the thread with this number waits for."""
    return f"{PREFIX}-{number}" if kind == "locks" else PREFIX


def main() -> None:
    kind, count, url = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    client = Client(url)
    with client.lock("awake"):
        pass
    event = threading.Event()

    def wait(number: int) -> None:
        if kind == "event":
            event.wait()
        else:
            client.lock(name_of(kind, number)).acquire()

    for number in range(count):
        threading.Thread(target=wait, args=(number,), daemon=True).start()
        time.sleep(0.0 if kind == "burst" else PAUSE_SECONDS)
    print(json.dumps("started"), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
