"""A file with no locking of its own: read, think, write. Two who do so at the same time lose an entry."""

import os
import time
from pathlib import Path

from attrs import frozen

THINKING_SECONDS = 0.002


@frozen
class Entry:
    """One update: whose, which of its updates, under which fencing token (0 without a lock)."""

    worker: str
    serial: int
    token: int


class Ledger:
    """The entries, one a line. The file is replaced as a whole, so that a reader never sees half of it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, entry: Entry) -> None:
        """Reads all entries, thinks, and writes them back with one more."""
        text = self.path.read_text() if self.path.exists() else ""
        time.sleep(THINKING_SECONDS)
        mine = self.path.with_suffix(f".{entry.worker}")
        mine.write_text(f"{text}{entry.worker} {entry.serial} {entry.token}\n")
        os.replace(mine, self.path)

    def entries(self) -> list[Entry]:
        """What is in the file now."""
        if not self.path.exists():
            return []
        lines = (line.split() for line in self.path.read_text().splitlines())
        return [Entry(worker, int(serial), int(token)) for worker, serial, token in lines]
