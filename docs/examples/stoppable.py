"""A worker that ends in order when it gets SIGTERM."""

import os
import signal
import sys
import time

from relock import Client


def stop(*_: object) -> None:
    """Leaves through every ``with`` block on the way."""
    sys.exit(0)


signal.signal(signal.SIGTERM, stop)

with Client(os.environ.get("REDIS_URL", "redis://localhost:6379/0")) as client:
    try:
        with client.lock("nightly report"):
            print("working", flush=True)
            time.sleep(3600)
    finally:
        print("released", flush=True)
