"""Tests without a server: relock on virtual masters, in virtual time. Needs the extra ``testing``.

`Lab` is for tests of code that uses relock. `Simulation` plays whole runs under faults, one for each seed, and judges
them: it is how relock itself is tested (``python -m relock.testing --help``).
"""

from relock.testing._lab import Lab
from relock.testing._simulation import Simulation, ViolationError

__all__ = ["Lab", "Simulation", "ViolationError"]
