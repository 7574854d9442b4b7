"""The app of `relock top` on masters that are made up, in terminals of several sizes."""

import re
import signal
from collections.abc import Iterator

import pytest
from support.screens import PICTURE, MadeUpMasters, app_of, lines_of, picture, played, shown

from relock import ConfigurationError, QuorumError
from relock.cli._top.app import SCROLLBAR
from relock.cli._top.sampler import next_row
from relock.cli._top.table import PADDING, columns_for


def columns_in(lines: list[str], width: int) -> Iterator[tuple[str, str]]:
    """Yield the heading of each column, and its text without blanks from there to the end of the screen."""
    top = next(number for number, line in enumerate(lines) if line.startswith(" NAME"))
    at = 1
    for column in columns_for(width - SCROLLBAR):
        cells = [line[at : at + column.width + PADDING - 1].strip() for line in lines[top:-1]]
        yield cells[0], "".join(cells[1:]).replace(" ", "")
        at += column.width + PADDING


@pytest.mark.parametrize("width", [60, 80, 120])
async def test_each_name_and_holder_can_be_read_in_a_terminal_so_wide(width: int) -> None:
    masters = MadeUpMasters()
    async with played(masters, (width, 24)) as (app, _):
        lines = lines_of(app.export_screenshot())
    assert all(len(line) <= width for line in lines)
    columns = columns_for(width - SCROLLBAR)
    read = dict(columns_in(lines, width))
    assert list(read) == [column.heading for column in columns]
    for state in masters.states:
        texts = {column.heading: column.text(next_row(None, state, 0.0)).replace(" ", "") for column in columns}
        assert texts["NAME"] in read["NAME"]
        assert texts["HOLDER"] in read["HOLDER"]
    assert "".join(lines).count("≈") == sum(column.heading.startswith("≈") for column in columns)


async def test_keys_sort_filter_and_show_details() -> None:
    async with played(MadeUpMasters(), (80, 24)) as (app, pilot):
        orders = [app.names[0][0]]
        for _ in range(3):
            await pilot.press("s")
            orders.append(app.names[0][0])
        assert orders == ["orders:42", "invoices:eu-west-1:customer-20871", "catalogue", "orders:42"]
        await pilot.press("down", "enter")
        await shown(pilot, lambda: "all about it" in app.export_screenshot().replace("&#160;", " "))
        assert "semaphore gpu" in "\n".join(lines_of(app.export_screenshot()))
        await pilot.press("escape", "slash", *"*q", "escape")
        assert len(app.names) == 5
        await pilot.press("slash", "backspace", "backspace", *"*s:*", "enter")
        await shown(pilot, lambda: len(app.names) == 2)
        said = "\n".join(lines_of(app.export_screenshot()))
        assert "2 names, 2 looked at, 2 shown · sorted by queue · only *s:*\n" in said
        await pilot.press("q")
    assert app.return_code == 0


async def test_the_cursor_stays_on_its_name_when_the_order_changes() -> None:
    masters = MadeUpMasters()
    async with played(masters, (80, 24)) as (app, pilot):
        await pilot.press("down", "down", "s", "enter")
        await shown(pilot, lambda: "all about it" in app.export_screenshot().replace("&#160;", " "))
        assert "lock invoices:" in "\n".join(lines_of(app.export_screenshot()))


async def test_an_outage_is_shown_above_what_was_known() -> None:
    masters = MadeUpMasters()
    async with played(masters, (80, 24)) as (app, pilot):
        masters.problem = QuorumError("0 of 3 masters answered")
        app.look_now()
        await shown(pilot, lambda: "not known" in app.export_screenshot().replace("&#160;", " "))
        said = "\n".join(lines_of(app.export_screenshot()))
    assert "not known: 0 of 3 masters answered\n" in said
    assert "orders:42" in said


async def test_ctrl_c_ends_it_as_it_ends_other_commands() -> None:
    async with played(MadeUpMasters(), (80, 24)) as (app, pilot):
        await pilot.press("ctrl+c")
    assert app.return_code == 128 + signal.SIGINT


async def test_masters_that_cannot_be_used_end_it_with_their_error() -> None:
    masters = MadeUpMasters()
    masters.problem = ConfigurationError("two are the same server", option="nodes")
    app = app_of(masters)
    async with app.run_test() as pilot:
        await shown(pilot, lambda: app.return_value is not None)
    assert app.return_value is masters.problem


async def test_the_picture_in_the_documentation_shows_what_the_app_shows() -> None:
    """The bytes depend on the version of Textual, and so does the last line, that of the keys."""
    drawn = PICTURE.read_text()
    assert lines_of(drawn)[:-1] == lines_of(await picture())[:-1]
    assert "https://" not in re.sub(r"<!--.*?-->", "", drawn)
