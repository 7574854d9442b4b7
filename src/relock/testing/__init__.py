"""Tests without a server: relock on virtual masters, in virtual time. Needs the extra ``testing``.

`local_server` gives a real one to those tests that need it; the fixture `relock_server` is that, and needs no extra.

`Lab` is for tests of code that uses relock. `Simulation` plays whole runs under faults, one for each seed, and judges
them: it is how relock itself is tested.
"""

from relock._servers.server import LocalServer, NoServerError, local_server
from relock.testing._lab import Lab
from relock.testing._simulation import Simulation, ViolationError

__all__ = ["Lab", "LocalServer", "NoServerError", "Simulation", "ViolationError", "local_server"]
