"""Every contestant that needs no other package makes its pairs: no changed script leaves the benchmark behind.

The peers are not here: their packages come with the extra ``bench`` alone.
"""

from collections.abc import Callable
from typing import Any

import pytest
from support.servers import Server

from bench.contestants import AFRESH, CONTESTANTS, CONTESTANTS_OF_SEVERAL, FLOOR
from relock.cli._bench.words import BARE, REENTRY, RELOCK

PAIRS = 3

# A contestant ends with the process that it is measured in: nobody closes its sockets. So each has a server of its own.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.mark.parametrize("name", [BARE, FLOOR, RELOCK, REENTRY, AFRESH, "redis-py Lock"])
def test_a_contestant_on_one_master_makes_its_pairs(name: str, start_server: Callable[[], Server]) -> None:
    pair: Any = CONTESTANTS[name](start_server().port)
    for _ in range(PAIRS):
        pair()


@pytest.mark.parametrize("name", [BARE, FLOOR, "relock's scripts, bare"])
def test_a_contestant_on_several_masters_makes_its_pairs(name: str, start_server: Callable[[], Server]) -> None:
    pair: Any = CONTESTANTS_OF_SEVERAL[name]([start_server().port])
    for _ in range(PAIRS):
        pair()
