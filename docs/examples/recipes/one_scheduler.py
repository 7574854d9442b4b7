# mypy: disable-error-code="import-untyped"
"""Scheduler that runs on each machine, and fires its jobs on one. Start it by: python one_scheduler.py."""

import os
import signal
import threading
from datetime import UTC, datetime

from apscheduler.schedulers.background import BackgroundScheduler
from relock import Client, Term

TTL = 10.0  # seconds after which another process leads if this one has died
EVERY_SECONDS = 60.0
JOB_SECONDS = 5.0  # which a job may take; less than the ttl

stop = threading.Event()


def report(term: Term) -> None:
    """Stands for a job: it checks that this process leads, and for how long."""
    fence = term.ensure(JOB_SECONDS)  # LockLostError unless the leadership is sure for as long
    print("report", fence, flush=True)


def lead(term: Term) -> None:
    """Run the scheduler for as long as this process leads."""
    scheduler = BackgroundScheduler(timezone=UTC)
    scheduler.add_job(report, "interval", [term], seconds=EVERY_SECONDS, next_run_time=datetime.now(UTC))
    scheduler.start()
    try:
        while not (term.lost.wait(0.2) or stop.is_set()):
            pass
    finally:
        scheduler.shutdown()  # waits for the job that runs


def main() -> None:
    """Lead, or stand by, until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with Client(os.environ.get("REDIS_URL", "redis://localhost:6379/0"), ttl=TTL) as client:
        client.elect("scheduler", lead, stop=stop)


if __name__ == "__main__":
    main()
