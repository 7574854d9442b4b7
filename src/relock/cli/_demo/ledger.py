"""A file with no locking of its own: read, think, write. Two workers that do so at the same time lose an entry."""

import os
from collections.abc import Callable
from pathlib import Path

from attrs import frozen


@frozen
class Entry:
    """One update: who made it (``process.thread``), which of theirs, under which fencing token (0 without a lock)."""

    worker: str
    serial: int
    token: int


class Ledger:
    """The entries, one a line. The file is replaced as a whole: what gets lost is lost by the race, not by half a file.

    A worker that is killed leaves the ledger as it was before its update, or as it is after it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, entry: Entry, think: Callable[[], None]) -> None:
        """Reads all entries, thinks, and writes them back with one more."""
        text = self.path.read_bytes() if self.path.exists() else b""
        think()
        mine = self.path.with_name(f"{self.path.name}.{entry.worker}")
        mine.write_bytes(text + f"{entry.worker} {entry.serial} {entry.token}\n".encode())
        os.replace(mine, self.path)

    def entries(self) -> list[Entry]:
        """What is in the file now."""
        if not self.path.exists():
            return []
        lines = (line.split() for line in self.path.read_text().splitlines())
        return [Entry(worker, int(serial), int(token)) for worker, serial, token in lines]

    def count(self) -> int:
        """How many entries are in the file now."""
        return self.path.read_bytes().count(b"\n") if self.path.exists() else 0
