"""The app of ``relock top``, with Textual: it shows snapshots, and changes nothing on the masters."""

import asyncio
import os
import signal
from collections.abc import Coroutine
from contextlib import suppress
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from relock import RelockError
from relock.cli._exit_codes import of_signal
from relock.cli._output import printable
from relock.cli._signals import end_by_signals
from relock.cli._top.masters import Masters
from relock.cli._top.sampler import SURVEY_SECONDS, Name, Sampler, Snapshot
from relock.cli._top.table import SORTS, columns_for, fold, in_order, line_of

ROWS_MAX = 200  # shown of a snapshot
SCROLLBAR = 1  # cells


class Rows(DataTable[Text]):
    """Table of the names."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select_cursor", "Details")]


class Details(ModalScreen[None]):
    """Text about one name."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "app.pop_screen", "Back", key_display="Esc")]

    def __init__(self, masters: Masters, name: Name) -> None:
        super().__init__()
        self._masters, self._of = masters, name

    def compose(self) -> ComposeResult:
        """Make the text, which comes later, and the line of keys."""
        yield VerticalScroll(Static("asking the masters, and the clients of the holders …", markup=False))
        yield Footer()

    async def on_mount(self) -> None:
        """Begin to ask."""
        self.run_worker(self._ask())

    async def _ask(self) -> None:
        text = await asyncio.to_thread(self._masters.details, *self._of)
        self.query_one(Static).update(text)


class Top(App[RelockError]):
    """Table of the names in use, below a line for each master. An error of the library ends it, and is its result.

    Args:
        masters: what is read.
        sampler: chooses what is looked at.
        interval: seconds between two rounds.
        sort: one of `SORTS`, the first order of the rows.
    """

    ENABLE_COMMAND_PALETTE = False  # one of its commands writes a file
    CSS = f"""
    #masters, #problem, #counts {{ height: auto; max-height: 8; }}
    #problem {{ color: $text-error; }}
    #counts {{ text-style: bold; }}
    Rows {{ height: 1fr; scrollbar-size-vertical: {SCROLLBAR}; }}
    Input {{ display: none; }}
    Details {{ align: center middle; }}
    Details VerticalScroll {{ width: 90%; height: auto; max-height: 80%; border: round $primary; padding: 0 1; }}
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "interrupt", show=False, priority=True),
        Binding("s", "sort", "Sort"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("escape", "close_filter", show=False),
    ]

    def __init__(self, masters: Masters, sampler: Sampler, interval: float, sort: str) -> None:
        super().__init__()
        self._masters, self._sampler, self._interval, self._sort = masters, sampler, interval, sort
        self._snapshot, self.names = Snapshot(), list[Name]()
        self._surveyed, self._wanted_now = asyncio.Event(), asyncio.Event()
        self._lines = {part: Static(id=part, markup=False) for part in ("masters", "problem", "counts")}
        self._filter, self._table = (
            Input(placeholder="glob, such as orders:*; empty: all names"),
            Rows(cursor_type="row"),
        )

    def compose(self) -> ComposeResult:
        """Put the lines above the table, and below it that of the keys."""
        yield from self._lines.values()
        yield from (self._filter, self._table, Footer())

    def on_mount(self) -> None:
        """Begin to read."""
        self._table.focus()
        self.run_worker(self._read(self._surveys()))
        self.run_worker(self._read(self._rounds()))

    def on_unmount(self) -> None:
        """End a round early: its thread keeps the process."""
        self._sampler.closed = True

    async def _read(self, reading: Coroutine[None, None, None]) -> None:
        try:
            await reading
        except RelockError as error:
            self.exit(error)

    async def _surveys(self) -> None:
        while True:
            await asyncio.to_thread(self._sampler.survey)
            self._surveyed.set()
            await asyncio.sleep(SURVEY_SECONDS)

    async def _rounds(self) -> None:
        await self._surveyed.wait()
        parent = os.getppid()
        while os.getppid() == parent:  # a server that is killed does not end this process
            self._snapshot = await asyncio.to_thread(self._sampler.round, self._interval)
            self.show()
            self._wanted_now.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wanted_now.wait(), self._interval)
        self.exit()

    def on_resize(self, _event: events.Resize) -> None:
        """Choose the columns anew."""
        self.show()

    def show(self) -> None:
        """Show what is known."""
        known, pattern = self._snapshot, self._sampler.pattern
        rows = in_order(known.rows, self._sort)[:ROWS_MAX]
        self._lines["masters"].update("\n".join(map(line_of, known.masters)))
        self._lines["problem"].update(printable(f"not known: {known.problem}") if known.problem else "")
        self._lines["problem"].display = known.problem is not None
        only = "" if pattern == "*" else f" · only {printable(pattern)}"
        counts = f"{known.names} names, {len(known.rows)} looked at, {len(rows)} shown · sorted by {self._sort}{only}"
        self._lines["counts"].update(counts)
        columns, at, scrolled = columns_for(self.size.width - SCROLLBAR), self._table.cursor_row, self._table.scroll_y
        chosen = self.names[at] if at < len(self.names) else None
        self.names = [(row.state.name, row.state.kind) for row in rows]
        self._table.clear(columns=True)
        for column in columns:
            self._table.add_column(column.heading, width=column.width)
        for row in rows:
            cells = [fold(column.text(row), column.width) for column in columns]
            self._table.add_row(*(Text("\n".join(cell)) for cell in cells), height=max(map(len, cells)))
        if chosen in self.names:  # otherwise the cursor stays in its place, as far as there are rows
            at = self.names.index(chosen)
        self._table.move_cursor(row=at, scroll=False)
        self._table.scroll_to(y=scrolled, animate=False)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Show the details of a name."""
        self.push_screen(Details(self._masters, self.names[event.cursor_row]))

    def action_sort(self) -> None:
        """Take the next order."""
        self._sort = SORTS[(SORTS.index(self._sort) + 1) % len(SORTS)]
        self.show()

    def action_filter(self) -> None:
        """Ask for a glob."""
        self._filter.display = True
        self._filter.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Show, and look at, only the names that match the glob."""
        self._sampler.pattern = event.value or "*"
        self.look_now()
        self.action_close_filter()

    def look_now(self) -> None:
        """Begin the next round now."""
        self._wanted_now.set()

    def action_close_filter(self) -> None:
        """Go back to the table."""
        self._filter.display = False
        self._table.focus()

    def action_interrupt(self) -> None:
        """End as Ctrl-C ends other commands: in a terminal, Textual reads it as a key."""
        self.exit(return_code=of_signal(signal.SIGINT))


async def play(app: Top) -> int:
    """Run the app until it is quit, or a signal ends it; return the exit code.

    Raises:
        RelockError: the masters can't be used.
    """
    end_by_signals(lambda code: app.exit(return_code=code))
    error = await app.run_async()
    if error is not None:
        raise error
    return app.return_code or 0
