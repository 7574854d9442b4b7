"""Takes turns with every other worker. Usage: python worker.py NAME TURNS SECONDS."""

import os
import sys
import time

from relock import Client

name, turns, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])

with Client(os.environ.get("REDIS_URL", "redis://localhost:6379/0"), client_name=name) as client:
    for _ in range(turns):
        with client.lock("tutorial") as held:
            begin = time.monotonic()
            time.sleep(seconds)  # what must not happen twice at the same time
            print(name, held.token, f"{begin:.3f}", f"{time.monotonic():.3f}", flush=True)
