"""Masters on which scripts run: each module that uses these fixtures has a class `Master`."""

from collections.abc import Iterator

import pytest
from support.script_master import ScriptMaster, fake_master, real_master
from support.servers import Server


@pytest.fixture(params=["fakeredis", "server"])
def master(request: pytest.FixtureRequest) -> Iterator[ScriptMaster]:
    if request.param == "fakeredis":
        yield from fake_master(request.module.Master)
    else:
        yield from real_master(request.module.Master, request.getfixturevalue("server"))


@pytest.fixture
def real(request: pytest.FixtureRequest, server: Server) -> Iterator[ScriptMaster]:
    """A real server, for scripts that ask for its incarnation."""
    yield from real_master(request.module.Master, server, knows_incarnation=True)
