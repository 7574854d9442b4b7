"""Preparation of the processes that tests start: quick imports, and small caches where the tests ask for them.

Python imports this module when it starts, if its folder is on PYTHONPATH (`support.startup_path`).
"""

import os
import sys

# redis-py imports the SDK wherever it is installed, and needs as long for it as for all else.
sys.modules["opentelemetry.sdk"] = None  # type: ignore[assignment]

if "RELOCK_TEST_CACHES" in os.environ:
    import small_caches  # type: ignore[import-not-found]  # noqa: F401
