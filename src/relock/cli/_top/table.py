"""The table of ``relock top``: its columns by the width of the terminal, its order, and texts that fit."""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

from attrs import evolve, frozen
from rich.cells import cell_len, chop_cells, set_cell_size

from relock._doctor.findings import Examination, Verdict
from relock._keys import LOCK
from relock.cli._output import printable, span
from relock.cli._states import State, in_words
from relock.cli._top.sampler import Row, next_row

PADDING = 2  # cells of a column beside its text
LINES_MAX = 4  # of one text
_PARTS = re.compile(r"[^\s:/.,|_-]*[\s:/.,|_-]+|[^\s:/.,|_-]+")  # a line ends after one of these marks


@frozen
class Column:
    """Column of the table.

    Attributes:
        heading: its name.
        width: cells of its text; of the name and the holder, the least.
        text: returns what it shows of a row.
    """

    heading: str
    width: int
    text: Callable[[Row], str]


def _seconds(key: str) -> Callable[[Row], str]:
    def text(row: Row) -> str:
        seconds = row.facts.get(key)
        return "-" if seconds is None else span(seconds).replace(" min", "m").replace(" ", "")

    return text


def _count(row: Row) -> str:
    return str(row.facts.get("hold_count", row.facts.get("permits", "-")))


def _rate(row: Row) -> str:
    rate = row.facts.get("tokens_per_second")
    return "-" if rate is None else f"{rate:.1f}" if rate >= 10 else f"{rate:.2f}"


NAME = Column("NAME", 15, lambda row: printable(row.state.name))
KIND = Column("KIND", 9, lambda row: row.state.kind)
HOLDER = Column("HOLDER", 18, lambda row: in_words(row.state))
COUNT = Column("COUNT", 5, _count)
HELD = Column("≈HELD FOR", 9, _seconds("held_for_seconds"))
FIRST = Column("≈FIRST FOR", 10, _seconds("first_waits_seconds"))
LEFT = Column("TTL LEFT", 8, _seconds("lease_left_seconds"))
WAITERS = Column("WAITERS", 7, lambda row: str(len(row.facts["queue"])) if "queue" in row.facts else "-")
RATE = Column("≈TOKENS/S", 9, _rate)
COLUMNS = (NAME, KIND, HOLDER, COUNT, HELD, FIRST, LEFT, WAITERS, RATE)
NARROW = (NAME, HOLDER, WAITERS, FIRST, HELD, LEFT, COUNT, RATE, KIND)  # the last ones go first where it is narrow


def columns_for(width: int, order: Sequence[Column] = NARROW) -> list[Column]:
    """Return the columns for so many cells; those of the name and the holder have all that the others leave."""
    chosen, left = [], width
    for column in order:
        left -= column.width + PADDING
        if left < 0 and column not in (NAME, HOLDER):
            left += column.width + PADDING
            break
        chosen.append(column)
    more = {NAME: max(0, left) * 2 // 5, HOLDER: max(0, left) - max(0, left) * 2 // 5}
    columns = [evolve(one, width=one.width + more.get(one, 0)) for one in COLUMNS if one in chosen]
    return columns if KIND in chosen else [evolve(columns[0], text=_name_and_kind), *columns[1:]]


def _name_and_kind(row: Row) -> str:
    return NAME.text(row) if row.state.kind == LOCK else f"{NAME.text(row)} ({row.state.kind})"


def fold(text: str, width: int) -> list[str]:
    """Return a text in lines that fit, which end between two words if possible; of a long text, beginning and end."""
    lines, line = [], ""
    for part in (piece for word in _PARTS.findall(text) for piece in chop_cells(word, width)):
        if line and cell_len(line + part.rstrip()) > width:
            lines.append(line.rstrip())
            line = ""
        line += part
    lines.append(line.rstrip())
    if len(lines) <= LINES_MAX:
        return lines
    end = chop_cells(lines[-1][::-1], width - 1)[0][::-1]
    return [*lines[: LINES_MAX - 1], f"…{end}"]


def narrow_lines(states: Sequence[State], width: int) -> Iterator[str]:
    """Yield a table of these states in lines of so many cells; without rates, which a single look does not tell."""
    columns = columns_for(width + PADDING, [column for column in NARROW if column is not RATE])
    for texts in [
        [column.heading for column in columns],
        *([column.text(next_row(None, state, 0.0)) for column in columns] for state in states),
    ]:
        cells = [fold(text, column.width) for text, column in zip(texts, columns, strict=True)]
        for line in zip_longest(*cells, fillvalue=""):
            padded = (set_cell_size(text, column.width) for text, column in zip(line, columns, strict=True))
            yield (" " * PADDING).join(padded).rstrip()


_ORDERS: dict[str, Callable[[dict[str, Any]], float]] = {
    "queue": lambda facts: -len(facts.get("queue", ())),
    "held": lambda facts: -(facts.get("held_for_seconds") or 0.0),
    "ttl": lambda facts: facts.get("lease_left_seconds") or float("inf"),
}
SORTS = tuple(_ORDERS)


def in_order(rows: Sequence[Row], sort: str) -> list[Row]:
    """Return the rows: longest queue first, or longest held, or the lease that ends first; then by the first waiter."""
    order = _ORDERS[sort]
    return sorted(
        rows, key=lambda row: (order(row.facts), -(row.facts.get("first_waits_seconds") or 0.0), row.state.name)
    )


def line_of(master: Examination) -> str:
    """Return the line about a master."""
    wrong = next((finding.says for finding in master.findings if finding.verdict is Verdict.WRONG), "")
    words = [master.address, next((one.says for one in master.findings if one.check == "version"), "")]
    if master.slots is not None:
        words.append(f"{master.slots} slots")
    elif master.vote_in is not None:
        words.append(f"no vote for {span(master.vote_in)}" if master.vote_in else "votes")
    elif master.reachable:
        words.append("no guard")
    if master.clock_offset is not None:
        words.append(f"clock {sum(master.clock_offset) / 2:+.3f} s")
    return printable("  ".join(word for word in (*words, wrong) if word))
