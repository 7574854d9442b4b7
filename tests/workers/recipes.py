"""Programs of the recipes, as processes whose work a test sees and lets go on."""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import redis

NODE_TIMEOUT = 5.0  # seconds: a busy machine must not look like a server that does not answer
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def load(name: str, module: str | None = None) -> Any:
    """Import a program of ``docs/examples`` by its path there, without the suffix."""
    found = module or Path(name).name
    specification = importlib.util.spec_from_file_location(found, EXAMPLES / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    sys.modules[found] = program = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(program)
    return program


def server() -> "redis.Redis":
    """Return a client of the test's server, whose blocking commands may block for any time."""
    return redis.Redis.from_url(os.environ["REDIS_URL"], decode_responses=True, socket_timeout=None)


def work(name: str, fence: int) -> None:
    """Tell that this process is inside with a fencing token, and stay there until the test lets it go on."""
    with server() as told:
        told.rpush(f"inside:{name}", f"{os.getpid()} {fence}")
        told.blpop([f"go:{name}"])
