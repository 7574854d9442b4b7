"""The one clock of the client side. It goes on while the machine is suspended, where the system has such a clock."""

import time
from functools import partial

from relock._core.effects import Clock

clock: Clock = partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
