"""Play of a lab whose masters have no restart guard or a short one on purpose, without the warning of that."""

import warnings
from collections.abc import Callable
from typing import Any

from relock import Client
from relock.testing import Lab


def warm_up(lab: Lab, client: Client) -> None:
    """Wait, inside `Lab.run`, until the client is connected to all masters."""
    for _ in range(3):
        with client.lock("warm-up"):
            lab.sleep(1.0)


def play(lab: Lab, *functions: Callable[[], Any]) -> list[Any]:
    """Run functions as `Lab.run` does, without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return lab.run(*functions)
