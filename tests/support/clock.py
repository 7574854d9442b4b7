"""A clock that a test can set, for one server: a shim over ``gettimeofday`` and ``clock_gettime``, built by the test.

libfaketime does not work with the allocators of these servers; the few lines below do.
"""

import mmap
import shutil
import struct
import subprocess
from pathlib import Path

# The shim makes system calls instead of calling the functions that it replaces: an allocator may ask for the time while
# the program loads, before a look-up of these functions is possible.
SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *ahead_us;

__attribute__((constructor)) static void prepare(void) {
  const char *path = getenv("RELOCK_TEST_CLOCK");
  int file = path ? open(path, O_RDONLY) : -1;
  if (file < 0) return;
  void *shared = mmap(0, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
  if (shared != MAP_FAILED) ahead_us = shared;
}

int clock_gettime(clockid_t id, struct timespec *ts) {
  int result = syscall(SYS_clock_gettime, id, ts);
  if (ahead_us && id == CLOCK_REALTIME) {
    int64_t us = (int64_t)ts->tv_sec * 1000000 + ts->tv_nsec / 1000 + *ahead_us;
    ts->tv_sec = us / 1000000;
    ts->tv_nsec = us % 1000000 * 1000 + ts->tv_nsec % 1000;
  }
  return result;
}

int gettimeofday(struct timeval *tv, void *zone) {
  struct timespec now;
  int result = clock_gettime(CLOCK_REALTIME, &now);
  tv->tv_sec = now.tv_sec;
  tv->tv_usec = now.tv_nsec / 1000;
  return result;
}
"""


class Clock:
    """Clock of one server, by how far it is ahead of this machine's; it may be set while the server runs."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise LookupError("no C compiler here: the shim for a server's clock can't be built")
        source, self._library, path = folder / "clock.c", folder / "clock.so", folder / "clock"
        source.write_text(SOURCE)
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(self._library), str(source)]
        subprocess.run(command, check=True, capture_output=True)
        path.write_bytes(bytes(8))
        with path.open("r+b") as file:
            self._ahead_us = mmap.mmap(file.fileno(), 8)
        self._path = path

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment that the server must start with."""
        return {"LD_PRELOAD": str(self._library), "RELOCK_TEST_CLOCK": str(self._path)}

    def set(self, ahead: float) -> None:
        """Set the server's clock `ahead` seconds ahead of this machine's; below 0, behind."""
        self._ahead_us[:] = struct.pack("<q", int(ahead * 1e6))
