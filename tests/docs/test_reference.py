"""The reference lists exactly the names, options, events and loggers that exist."""

import inspect
import re
from pathlib import Path

import attrs
import pytest

import relock
from relock import LossCode
from relock._core import hold
from relock._core.flows.attempt import HEARTBEAT_SECONDS
from relock._core.lock_spec import ALIVE_MS, QUEUE_MS
from relock._options import ClientOptions, LockOptions, default_client_name
from relock._runtime.background import telling
from relock._runtime.masters.pool import UNUSED_SECONDS
from relock._runtime.session.session import _ORDINARY_EVENTS
from relock._scripts import load, script_names

DOCS = Path(__file__).resolve().parents[2] / "docs"
REFERENCE = DOCS / "reference"


def _rows(page: str) -> dict[str, list[str]]:
    """Return the rows of all tables of a page, by the names in their first cells."""
    rows: dict[str, list[str]] = {}
    for line in (REFERENCE / page).read_text().splitlines():
        if line.startswith("| `"):
            first, *others = (cell.strip() for cell in line.strip("|").split(" | "))
            for name in re.findall(r"`(\w+)`", first):
                rows.setdefault(name, others)
    return rows


@pytest.mark.parametrize("option", list(attrs.fields(ClientOptions)), ids=lambda field: str(field.name))
def test_options_have_their_defaults(option: "attrs.Attribute[object]") -> None:
    shown = _rows("options.md")[option.name][0].strip("`")
    if option.name == "client_name":
        assert shown == "host and pid"
        assert default_client_name()
    else:
        assert shown.strip('"') == str(option.default)


def test_options_of_a_lock_are_listed() -> None:
    assert {field.name for field in attrs.fields(LockOptions)} <= set(_rows("options.md"))


def test_every_public_name_is_in_the_reference() -> None:
    pages = "\n".join(page.read_text() for page in REFERENCE.glob("*.md"))
    documented = set(re.findall(r"auto(?:class|exception|function):: relock\.(\w+)\b(?!\.)", pages))
    assert documented == set(relock.__all__)


def test_numbers_are_those_of_the_code() -> None:
    text = (REFERENCE / "options.md").read_text()
    assert f"| every {HEARTBEAT_SECONDS:g} s |" in text
    assert f"| for {ALIVE_MS / 1000:g} s |" in text
    assert f"| by {QUEUE_MS / 1000:g} s |" in text
    assert f"| {UNUSED_SECONDS:g} s |" in text


def test_what_is_dropped_and_from_which_number_on_is_that_of_the_code() -> None:
    text = (DOCS / "how-to" / "operating.md").read_text()
    *most, last = (re.sub("(?<=[a-z])(?=[A-Z])", " ", event.__name__).lower() for event in _ORDINARY_EVENTS)
    assert f"At most {telling.WAITING_MAX:,} items wait" in text
    assert f"| {telling.ORDINARY_MAX:,} | {', '.join(most)} and {last}; log records below WARNING |" in text
    assert f"| {telling.WAITING_MAX:,} | everything else, too |" in text


def test_every_reason_for_a_loss_is_explained() -> None:
    text = (REFERENCE / "errors.md").read_text()
    assert set(hold.REASONS) == set(LossCode) - {LossCode.NOT_RETAKEN}
    for code, reason in hold.REASONS.items():
        assert f"| `{code}` | {reason} |" in text
    assert f"| `{LossCode.NOT_RETAKEN}` | a condition's wait" in text


def test_keys_are_those_of_the_scripts() -> None:
    text = (REFERENCE / "keys.md").read_text()
    keys = {parameter.name for name in script_names() for parameter in load(name).keys}
    assert keys == {"lock", "queue", "waiters", "token", "master", "permits", "leases", "limit", "latch"}
    for key in keys - {"lock", "master", "permits", "latch"}:
        owner = ":sem" if key in ("leases", "limit") else ""
        assert f"`lock:{{NAME}}{owner}:{key}`" in text
    assert "`lock:{NAME}:sem`" in text
    assert "`lock:{NAME}:latch`" in text
    assert "`lock:master`" in text


def test_links_between_the_top_level_pages_exist() -> None:
    root = DOCS.parent
    for page in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", (root / page).read_text()):
            assert (root / target).is_file(), f"{page}: {target}"


def test_the_guarantees_name_tests_that_exist() -> None:
    tests = DOCS.parent / "tests"
    files = list(tests.rglob("test_*.py"))
    names = {file.stem for file in files}
    for file in files:
        names |= set(re.findall(r"^(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE))
    named = set(re.findall(r"\b(test_\w+)", (DOCS / "concepts" / "guarantees.md").read_text()))
    assert named
    assert named <= names


def _told_loggers() -> dict[tuple[str, str], str]:
    """Return the rows of the table of loggers, by logger and level."""
    told = {}
    for line in (DOCS / "how-to" / "operating.md").read_text().splitlines():
        if line.startswith("| `relock."):
            loggers, level, what = (cell.strip() for cell in line.strip("|").split(" | "))
            told.update({(logger, level): what for logger in re.findall(r"`([\w.]+)`", loggers)})
    return told


def _used_loggers() -> set[tuple[str, str]]:
    """Return the loggers that speak, and their levels above DEBUG, by the source of their modules."""
    package = Path(relock.__file__).parent
    used = set()
    for path in package.rglob("*.py"):
        module = ".".join(("relock", *path.relative_to(package).with_suffix("").parts))
        named = re.search(r"^logger.* = logging\.getLogger\((?:__name__|\"(.*)\")\)$", path.read_text(), re.MULTILINE)
        for level in re.findall(r"log(?:ger)?\.(warning|error)\(", path.read_text()):
            assert named is not None, path
            used.add((named[1] or module, level.upper()))
    return used


def test_no_logger_has_the_name_of_a_private_module() -> None:
    """Users write these names into their configuration, and a private module may go."""
    assert all(re.fullmatch(r"relock(\.[a-z]\w*)+", logger) for logger, _ in _told_loggers())


def test_every_logger_that_speaks_is_in_the_table() -> None:
    told = set(_told_loggers())
    chosen_as_it_runs = {(logger, level) for logger, level in told if logger == "relock.events"}
    assert told - chosen_as_it_runs == _used_loggers()


def _told_options(docstring: str) -> dict[str, str]:
    """Return the entries below Args, by their names."""
    entries = inspect.cleandoc(docstring).partition("Args:")[2].partition("Raises:")[0]
    return dict(re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", entries, re.MULTILINE))


@pytest.mark.parametrize("client", [relock.Client, relock.AsyncClient])
@pytest.mark.parametrize("option", list(attrs.fields(ClientOptions)), ids=lambda field: str(field.name))
def test_the_docstring_of_a_client_has_each_option_and_its_default(
    client: type, option: "attrs.Attribute[object]"
) -> None:
    told = _told_options(client.__doc__ or "")[option.name]
    default = f'"{option.default}"' if isinstance(option.default, str) else str(option.default)
    assert re.search(rf"default `*{re.escape(default)}(?![\w.]*\w)|`{re.escape(default)}`*, the default", told), told


def test_both_clients_say_the_same_of_each_number() -> None:
    one, other = (_told_options(client.__doc__ or "") for client in (relock.Client, relock.AsyncClient))
    for option in set(one) - {"nodes", "on_lost", "on_event"}:
        assert one[option] == other[option]
