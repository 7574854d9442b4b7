"""A clock that a test can set, for one server: a shim over ``gettimeofday`` and ``clock_gettime``, built by the test.

libfaketime does not work with the allocator that these servers bring along; the few lines below do.
"""

import mmap
import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static volatile int64_t *ahead_us;
static int (*real_gettimeofday)(struct timeval *, void *);
static int (*real_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void prepare(void) {
  const char *path = getenv("RELOCK_TEST_CLOCK");
  int file = path ? open(path, O_RDONLY) : -1;
  real_gettimeofday = dlsym(RTLD_NEXT, "gettimeofday");
  real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
  if (file >= 0) ahead_us = mmap(0, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
}

int gettimeofday(struct timeval *tv, void *zone) {
  int result = real_gettimeofday(tv, zone);
  if (ahead_us) {
    int64_t us = (int64_t)tv->tv_sec * 1000000 + tv->tv_usec + *ahead_us;
    tv->tv_sec = us / 1000000;
    tv->tv_usec = us % 1000000;
  }
  return result;
}

int clock_gettime(clockid_t id, struct timespec *ts) {
  int result = real_clock_gettime(id, ts);
  if (ahead_us && id == CLOCK_REALTIME) {
    int64_t us = (int64_t)ts->tv_sec * 1000000 + ts->tv_nsec / 1000 + *ahead_us;
    ts->tv_sec = us / 1000000;
    ts->tv_nsec = us % 1000000 * 1000 + ts->tv_nsec % 1000;
  }
  return result;
}
"""


class Clock:
    """How far one server's clock is ahead of this machine's; it may be set while the server runs."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise LookupError("no C compiler here: the shim for a server's clock can't be built")
        source, self._library, path = folder / "clock.c", folder / "clock.so", folder / "clock"
        source.write_text(SOURCE)
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(self._library), str(source), "-ldl"]
        subprocess.run(command, check=True, capture_output=True)
        path.write_bytes(bytes(8))
        with path.open("r+b") as file:
            self._ahead_us = mmap.mmap(file.fileno(), 8)
        self._path = path

    @property
    def environment(self) -> dict[str, str]:
        """What the server is to be started with."""
        return {"LD_PRELOAD": str(self._library), "RELOCK_TEST_CLOCK": str(self._path)}

    def set(self, ahead: float) -> None:
        """The server's clock is `ahead` seconds ahead of this machine's from now on; below 0, behind."""
        self._ahead_us[:] = struct.pack("<q", int(ahead * 1e6))
