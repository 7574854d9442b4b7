"""The program that plays jobs in Python: ``python -m bench.handoff.worker``."""

import logging
import warnings

from bench.handoff.contestants import CONTESTANTS
from relock.cli._bench.work import serve

# Imported before the first fork: what every contestant would else import in each of its processes.
for module in ("pottery", "redis_lock", "redlock"):
    __import__(module)

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    serve(lambda job: CONTESTANTS[job.contestant].enter(job))
