"""The tests with the smallest caches: nothing may depend on the content of a cache.

With ``RELOCK_TEST_CACHES=1`` every cache of relock keeps one entry, in the tests and in each Python that they start.
"""

import os
import sys
from pathlib import Path

from relock import _caches

VARIABLE = "RELOCK_TEST_CACHES"
STARTUP = str(Path(__file__).parent / "startup")


def limit_caches() -> None:
    """Make caches keep as many entries as the environment says, if it says a number."""
    if VARIABLE not in os.environ:
        return
    _caches.COUNT_MAX = int(os.environ[VARIABLE])
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if STARTUP not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([STARTUP, *filter(None, paths)])
        sys.path.insert(0, STARTUP)  # some tests derive the PYTHONPATH of their processes from `sys.path`
