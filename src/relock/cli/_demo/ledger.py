"""A file with no locking of its own: read, think, write. Two workers that do so at the same time lose an entry."""

import os
from pathlib import Path

from attrs import frozen


@frozen
class Entry:
    """One update: who made it (``process.number``), which of theirs, under which fencing token (0 without a lock)."""

    worker: str
    serial: int
    token: int


class Ledger:
    """The entries, one a line. The file is replaced as a whole: what gets lost is lost by the race, not by half a file.

    A worker that is killed leaves the ledger as it was before its update, or as it is after it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> bytes:
        """All that is in it, for `write`; a worker thinks in between."""
        return self.path.read_bytes() if self.path.exists() else b""

    def write(self, text: bytes, entry: Entry) -> None:
        """Writes back what was read, with one entry more."""
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
