"""A file without a lock of its own: two workers that update it at the same time lose an update."""

import os
from pathlib import Path
from typing import NamedTuple


class Entry(NamedTuple):
    """One update in the ledger: ``process.number`` of the worker, a serial number, the fencing token (0: no lock)."""

    worker: str
    serial: int
    token: int


def read(ledger: Path) -> bytes:
    """Return the text of the ledger, for `write`; a worker thinks in between."""
    return ledger.read_bytes() if ledger.exists() else b""


def write(texts: dict[Path, bytes], entry: Entry) -> None:
    """Write back the texts that were read, each with one entry more.

    The whole file is replaced, so a killed worker leaves a ledger as it was before its update or after it.
    """
    for ledger, text in texts.items():
        draft = ledger.with_name(f"{ledger.name}.{entry.worker}")
        draft.write_bytes(text + f"{entry.worker} {entry.serial} {entry.token}\n".encode())
        os.replace(draft, ledger)


def entries(ledger: Path) -> list[Entry]:
    """Return the entries that are in the ledger now."""
    rows = map(str.split, read(ledger).decode().splitlines())
    return [Entry(worker, int(serial), int(token)) for worker, serial, token in rows]
