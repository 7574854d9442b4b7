"""The program that plays jobs with relock's lock, or the floor's: ``python -m relock.cli._bench.worker``."""

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from relock import Client, Lock
from relock.cli._bench.floor import hops
from relock.cli._bench.words import ONE_HOP, RELOCK
from relock.cli._bench.work import Enter, Job, serve


@contextmanager
def site(job: Job, **options: Any) -> Iterator[Callable[[], Lock]]:
    """Open the client that the workers of one process share, as the documentation advises."""
    with Client(list(job.urls), prefix=job.prefix, ttl=job.ttl, **options) as client:

        def locker() -> Lock:
            lock = client.lock(job.name)
            # The first acquire connects, with patience: masters answer slowly while many processes start.
            with lock:
                return lock

        yield locker


SITES: dict[str, Enter] = {RELOCK: site, ONE_HOP: hops.site}


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # the command has shown the same warnings
    logging.getLogger("relock").addHandler(logging.NullHandler())
    serve(lambda job: SITES[job.contestant](job))
