"""Somebody who acquires and releases a lock of his own again and again: ``python -m bench.bystander URL``.

On each line that comes in on its stdin it writes the delays of the acquires since the last one: when each began, and
how long it took, in seconds of `time.monotonic`.
"""

import json
import os
import sys
import threading
import time

from relock import Client

PAUSE_SECONDS = 0.001
Delays = list[tuple[float, float]]


class Bystander:
    """A thread that acquires and releases, and notes how long each acquire took."""

    def __init__(self, url: str) -> None:
        self._client = Client(url)
        self._delays: Delays = []
        self._is_over = False
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        lock = self._client.lock(f"bystander-{os.getpid()}", owner="bystander")
        while not self._is_over:
            began = time.monotonic()
            lock.acquire()
            self._delays.append((began, time.monotonic() - began))
            lock.release()
            time.sleep(PAUSE_SECONDS)

    def take(self) -> Delays:
        """The delays since this was last called."""
        delays, self._delays = self._delays, []
        return delays

    def close(self) -> None:
        """Ends the thread."""
        self._is_over = True
        self._thread.join()
        self._client.close()


def main() -> None:
    bystander = Bystander(sys.argv[1])
    for _ in sys.stdin:
        print(json.dumps(bystander.take()), flush=True)


if __name__ == "__main__":
    main()
