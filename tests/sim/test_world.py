"""Virtual time goes on."""

from queue import Empty

import pytest

from relock.testing._platform import VirtualQueue
from relock.testing._process import Process
from relock.testing._world import World


@pytest.mark.timeout(20)
def test_a_wait_too_short_to_move_the_clock_comes_to_an_end() -> None:
    """Clocks of processes then show finer steps than true time has."""
    world = World(0)
    world.now = 4.5
    process = Process(world, "a", offset=-4.0)
    ended: list[float] = []

    def wait() -> None:
        with pytest.raises(Empty):
            VirtualQueue(process).get(timeout=1e-16)
        ended.append(world.now)

    process.start(wait, "waits")
    world.run(until=5.0)
    assert ended


def test_a_clock_that_is_stopped_twice_goes_on_at_its_own_rate() -> None:
    process = Process(World(0), "a", rate=1.01)
    process.pause(stops_clock=True)
    process.pause(stops_clock=True)
    process.resume()
    assert process.rate == 1.01
