"""The program that plays jobs in Python: ``python -m bench.worker``."""

import importlib.util
import logging
import warnings

from bench.contestants import enter
from relock.cli._bench.work import serve

# Imported before the first fork: otherwise each process of a contestant would import the module itself.
for module in ("pottery", "redis_lock", "redlock"):
    if importlib.util.find_spec(module):
        importlib.import_module(module)

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    serve(enter)
