"""The tests with the smallest caches: nothing may depend on the content of a cache.

With ``RELOCK_TEST_CACHES=1`` every cache of relock keeps one entry, in the tests and in each Python that they start
(`support.startup_path`).
"""

import os

from relock import _caches

VARIABLE = "RELOCK_TEST_CACHES"


def limit_caches() -> None:
    """Make caches keep as many entries as the environment says, if it says a number."""
    if VARIABLE in os.environ:
        _caches.COUNT_MAX = int(os.environ[VARIABLE])
