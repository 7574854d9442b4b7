"""The path on which each Python that the tests start finds `support.startup`'s ``sitecustomize``, and runs it first."""

import os
import sys
from pathlib import Path

STARTUP = str(Path(__file__).parent / "startup")


def prepare_processes() -> None:
    """Let each Python that this process starts, directly or not, run ``sitecustomize`` first."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if STARTUP not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([STARTUP, *filter(None, paths)])
    if STARTUP not in sys.path:
        sys.path.insert(0, STARTUP)  # some tests derive the PYTHONPATH of their processes from `sys.path`
    if sys.modules.get("opentelemetry.sdk", sys) is None:
        del sys.modules["opentelemetry.sdk"]  # this process is one that pytest-xdist has started: it tests relock.otel
