"""Run each test of the contract on every driver, with one master and with three."""

import logging
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from support.masters import masters_counts

from contract.rigs.aio import AioRig
from contract.rigs.rig import Rig
from contract.rigs.threads import ThreadRig

REAL, VIRTUAL = ("threads", "aio"), ("virtual", "aio-virtual")
DRIVERS = REAL + VIRTUAL if find_spec("hiredis") else REAL  # the simulator parses replies with hiredis
MASTERS = (1, 3)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every driver and number of masters; a test with the marker ``several`` needs more than one.

    In a usual run real servers play the smallest number that will do: virtual time plays the others, and a long run
    plays them on servers as well.
    """
    if "rig" not in metafunc.fixturenames:
        return
    several = metafunc.definition.get_closest_marker("several") is not None
    counts = [masters for masters in MASTERS if masters > 1 or not several]
    smallest = min((count for count in counts if count in masters_counts()), default=counts[-1])
    cases = [
        pytest.param(
            driver,
            masters,
            id=f"{driver}-{masters}",
            marks=[pytest.mark.long] if driver in REAL and masters != smallest else [],
        )
        for driver in DRIVERS
        for masters in counts
    ]
    metafunc.parametrize(("driver", "masters_count"), cases)


@pytest.fixture
def rig(driver: str, masters_count: int, request: pytest.FixtureRequest, seed: int) -> Iterator[Rig]:
    """The rig of a driver and its masters."""
    made: Rig
    if driver in VIRTUAL:
        from contract.rigs.aio_virtual import AioVirtualRig
        from contract.rigs.virtual import VirtualRig

        made = (AioVirtualRig if driver == "aio-virtual" else VirtualRig)(masters_count, seed)
    else:
        made = (AioRig if driver == "aio" else ThreadRig)(request.getfixturevalue("server"))
    logger = logging.getLogger("relock")
    logger.addHandler(made.failures)
    yield made
    made.close()
    logger.removeHandler(made.failures)
    assert not made.failures.found, "the background threads logged no error"


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Play the test in a thread of its rig: in virtual time, a virtual thread."""
    rig = pyfuncitem.funcargs.get("rig")
    if not isinstance(rig, Rig):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    rig.play(lambda: pyfuncitem.obj(**arguments))
    return True
