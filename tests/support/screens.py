"""Screen of ``relock top`` in a test: masters that are made up, and the text in the picture that Textual makes.

To make the picture of the documentation anew: ``python -m support.screens``, in ``tests``.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path

from attrs import evolve
from textual.pilot import Pilot

from relock import LockInfo, RelockError, SemaphoreInfo
from relock._core.flows.inspect import Holder
from relock._core.flows.permits import PermitHolder
from relock._doctor.findings import Examination, Finding, Verdict
from relock.cli._states import State
from relock.cli._top.app import Top
from relock.cli._top.masters import Masters
from relock.cli._top.sampler import Sampler

PICTURE = Path(__file__).parents[2] / "docs" / "_static" / "top.svg"
SIZE = (120, 15)
CELL = 12.2  # the width of a character in such a picture
_TEXT = re.compile(r'<text class="[^"]*-r\d+" x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>', re.DOTALL)


def owner(host: str, process: int, name: str = "") -> str:
    return f"{host}-{process}-00c0ffee00c0ffee:{name and f'{name}.'}5ca1ab1e5ca1ab1e"


def lock(
    name: str, owner: str, held_for: float, ttl: float, waits: tuple[float, ...] = (), *, count: int = 1
) -> LockInfo:
    queue = tuple(f"waiter-{number}" for number in range(len(waits)))
    return LockInfo(name, owner, count, ttl, 7, queue, held_for=held_for, waits=waits)


class MadeUpMasters(Masters):
    """Masters of a webshop; a test may change their states.

    Attributes:
        looks: the names that were looked at, one after the other.
        scans: how often the names were found.
        now: the time of the sampler's clock, which stands still.
        problem: the error of each look and scan, if there is one.
    """

    def __init__(self) -> None:
        readers = tuple(Holder(owner("report", 300 + number), 1, 24.0 - number) for number in range(3))
        permits = tuple(PermitHolder(owner("train", 17 + number), 1, number, 28.1) for number in range(2))
        self.states: list[State] = [
            lock("orders:42", owner("checkout-7f9c", 412), 0.4, 29.6, (2.2, 1.9, 1.1, 0.3)),
            lock(
                "invoices:eu-west-1:customer-20871",
                owner("billing-5d84", 77, "nightly"),
                754.0,
                25.2,
                (311.5,),
                count=2,
            ),
            SemaphoreInfo("gpu", 2, 2, permits, ("waiter-0", "waiter-1"), waits=(8.5, 6.0)),
            LockInfo("catalogue", readers[0].owner, 1, 24.0, 7, (), readers),
            lock("cron:cleanup", owner("worker-a", 9), 3.1, 26.9),
        ]
        self.looks: list[tuple[str, str]] = []
        self.scans, self.now = 0, 0.0
        self.problem: RelockError | None = None

    def examine(self) -> list[Examination]:
        found = [Examination(f"redis://10.0.0.{number}:6379/0") for number in (1, 2, 3)]
        for one, vote_in in zip(found[:2], (0.0, 12.0), strict=True):
            one.reachable, one.vote_in, one.clock_offset = True, vote_in, (-0.001, 0.003)
            one.add("version", Verdict.OK, "Valkey 9.1.0")
        found[2].findings.append(Finding("reachable", Verdict.WRONG, "no answer within 1 s"))
        return found

    def find(self) -> Iterator[tuple[str, str, bool]]:
        self.scans += 1
        if self.problem is not None:
            raise self.problem
        for state in self.states:
            yield state.name, state.kind, False

    def look(self, name: str, kind: str) -> State:
        self.looks.append((name, kind))
        if self.problem is not None:
            raise self.problem
        return next(state for state in self.states if (state.name, state.kind) == (name, kind))

    def details(self, name: str, kind: str) -> str:
        return f"{kind} {name}\nall about it"

    def close(self) -> None:
        pass


def app_of(masters: MadeUpMasters) -> Top:
    """Return an app that looks once, and then when it is told to."""
    return Top(masters, Sampler(masters, lambda: masters.now), interval=3600.0, sort="queue")


@asynccontextmanager
async def played(masters: MadeUpMasters, size: tuple[int, int]) -> AsyncIterator[tuple[Top, Pilot[RelockError]]]:
    """Run the app in a terminal of a size that is made up, from its first table on."""
    app = app_of(masters)
    async with app.run_test(size=size) as pilot:
        await shown(pilot, lambda: bool(app.names))
        yield app, pilot


async def shown(pilot: Pilot[RelockError], is_so: Callable[[], bool]) -> None:
    """Wait until something is so, and is on the screen."""
    while not is_so():
        await pilot.pause()
    await pilot.pause()


def lines_of(svg: str) -> list[str]:
    """Return the lines of a screen of Textual, by its picture, without empty ones."""
    lines: dict[float, str] = {}
    for x, y, text in sorted((float(x), float(y), unescape(text)) for x, y, text in _TEXT.findall(svg)):
        lines[y] = lines.get(y, "").ljust(round(x / CELL)) + text.replace("\xa0", " ")
    return [lines[y].rstrip() for y in sorted(lines) if lines[y].strip()]


async def picture() -> str:
    """Return the picture of the app on the masters that are made up, after two rounds; it loads no fonts."""
    masters = MadeUpMasters()
    async with played(masters, SIZE) as (app, pilot):
        first = masters.states[0]
        assert isinstance(first, LockInfo)
        masters.states[0], masters.now = evolve(first, token=8), 1.0
        app.look_now()
        await shown(pilot, lambda: len(masters.looks) == 2 * len(masters.states))
        svg = app.export_screenshot(title="relock top")
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


if __name__ == "__main__":
    PICTURE.write_text(asyncio.run(picture()))
