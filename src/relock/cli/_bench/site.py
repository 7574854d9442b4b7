"""relock's own workers: a client for each process, and a lock object for each worker."""

import time
from typing import Any

from relock import Client, Lock, QuorumError
from relock.cli._bench.work import Job

CONNECT_SECONDS = 30.0


class Site:
    """The client that the workers of one process share, as the documentation advises."""

    def __init__(self, job: Job, **options: Any) -> None:
        self._client = Client(list(job.urls), prefix=job.prefix, ttl=job.ttl, **options)
        self._name = job.name

    def locker(self) -> "Locker":
        """Return a lock for another worker, connected; the first call connects the client."""
        lock = self._client.lock(self._name)
        _until_answered(lock)
        return Locker(lock)

    def close(self) -> None:
        """Close the client."""
        self._client.close()


def _until_answered(lock: Lock) -> None:
    """Wait until a quorum answers: while many processes start, that may take longer than relock waits for an answer."""
    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            lock.locked()
        except QuorumError:
            if time.monotonic() > deadline:
                raise
        else:
            return


class Locker:
    """One worker's lock."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self.release = lock.release

    def acquire(self) -> int:
        """Wait for the lock as long as it takes; return the fencing token."""
        self._lock.acquire()
        return self._lock.token or 0
