"""One process of the demo: workers that update the ledger, the same code with a lock and without.

    python -m relock.cli._demo.worker

It takes orders on stdin and tells what it did on stdout, a JSON object a line each. The first line is its `Job`
(on stdin, because a URL may hold a password, and arguments can be read by everybody). Orders: ``start`` (with the
ledger, and whether under the lock), ``stay`` (the next one inside stays there, in the middle of its update),
``go_on`` (it leaves), ``stop``; for tasks also ``block`` (the one that stays blocks its event loop), ``measure`` (how
long the loop has stood still), ``cancel`` (the waiter that has waited longest). It ends when its stdin is closed.
"""

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from relock.cli._demo.job import Job, tell
from relock.cli._demo.tasks import Tasks
from relock.cli._demo.threads import Threads


def orders() -> Iterator[dict[str, Any]]:
    """What the demo says, until the end of stdin, which is the end of the process."""
    for line in sys.stdin:
        yield json.loads(line)
    os._exit(0)  # whatever the workers are in the middle of, a loop that stands still too: the demo is over


def main() -> None:
    """Obeys until the end of stdin."""
    job = Job(**json.loads(sys.stdin.readline()))
    workers = Tasks(job) if job.is_asyncio else Threads(job)
    tell(did="ready")
    workers.run(orders())


if __name__ == "__main__":
    main()
