"""The one clock of the client side. It goes on while the machine is suspended, where the system has such a clock."""

import time

from relock._core.effects import Clock


def _boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


clock: Clock = _boottime if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
