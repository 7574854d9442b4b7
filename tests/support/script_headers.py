"""Headers of the scripts, beside the bodies below them: a header is what Python knows of its script."""

import re
from pathlib import Path

from relock._replies import fields_of
from relock._scripts import CONNECTION_ARGUMENTS, REST, SECTIONS, Parameter, Script, find_folder, load

UNITS = ("text", "int", "ms", "us", "flag", "pairs")

_USE = {kind: re.compile(rf"^local (\w+) = {kind}\[(\d+)\]$", re.MULTILINE) for kind in ("KEYS", "ARGV")}
_INDEX = {kind: re.compile(rf"{kind}\[(\w+)") for kind in ("KEYS", "ARGV")}
_STATUS = re.compile(r"(?:return|and) \{ ?(?:\w+ and )?'(\w+)'(?: or '(\w+)')?")
_INCLUDED = re.compile(r"--#include (\w+)$", re.MULTILINE)
_IN_WORDS = re.compile(r"return '(\w+) ' \.\. (.*)$", re.MULTILINE)
_BETWEEN_WORDS = " .. ' ' .. "


class HeaderError(Exception):
    """A script is not what its header says."""


def load_checked(name: str, folder: Path | None = None) -> Script:
    """Return a script.

    Raises:
        HeaderError: its header and its body disagree.
    """
    script = load(name, folder)
    body = ((folder or find_folder()) / f"{name}.lua").read_text("utf-8").partition("\n\n")[2]
    if tuple(script.header) != SECTIONS:
        raise HeaderError(f"the header has the sections {list(script.header)}, not {list(SECTIONS)} in this order")
    _check_parameters("KEYS", script.keys, body)
    _check_parameters("ARGV", script.arguments, body)
    _check_order([parameter.name for parameter in script.arguments])
    _check_replies(script, body)
    return script


def _check_parameters(kind: str, declared: tuple[Parameter, ...], body: str) -> None:
    for name, unit, _ in declared:
        if kind == "ARGV" and unit not in UNITS:
            raise HeaderError(f"{name} has the unit {unit!r}, not one of {UNITS}")
    used = [(match[1], int(match[2])) for match in _USE[kind].finditer(body)]
    wanted = [(one.name, i) for i, one in enumerate(declared, 1) if one.name != REST]
    if used != wanted:
        raise HeaderError(f"the header declares {kind} {wanted}, the body names {used}")
    indices = {index for index in _INDEX[kind].findall(body) if index.isdigit()}
    if indices != {str(i) for _, i in wanted}:
        raise HeaderError(f"the body uses {kind} {sorted(indices)}, the header declares {len(wanted)}")
    read = body + "".join(filter(_reads_names, map(_fragment, _INCLUDED.findall(body))))
    unused = [name for name, _ in wanted if len(re.findall(rf"\b{name}\b", read)) < 2]
    if unused:
        raise HeaderError(f"the header declares {unused}, which the body does not use")


def _fragment(name: str) -> str:
    path = find_folder() / "_lib" / f"{name}.lua"
    return re.sub("--.*", "", path.read_text("utf-8")) if path.is_file() else ""


def _reads_names(fragment: str) -> bool:
    """Return whether a fragment reads the names of the script that includes it: a function has names of its own."""
    return "local function" not in fragment


def _check_order(names: list[str]) -> None:
    """Check that a call's own arguments come first, then its connection's, then the rest: they are joined so."""
    known = [name for name in names if name in CONNECTION_ARGUMENTS]
    own = [name for name in names if name not in (*known, REST)]
    rest = [name for name in names if name == REST]
    if names != own + known + rest or tuple(known) not in ((), CONNECTION_ARGUMENTS[:1], CONNECTION_ARGUMENTS):
        raise HeaderError(f"the header has {names}: its own come first, then {CONNECTION_ARGUMENTS}, then ...")


def _check_replies(script: Script, body: str) -> None:
    """Check each status. Arrays may stand in a fragment; words may not: what a fragment joins so is a message."""
    in_words = {status.decode() for status in script.in_words}
    arrays = {status for pair in _STATUS.findall(script.source.decode()) for status in pair if status}
    if script.statuses.keys() - in_words != arrays:
        declared = sorted(script.statuses)
        raise HeaderError(f"the header returns {declared}, the body returns {sorted(arrays)} as arrays")
    joined = {(status, 1 + rest.count(_BETWEEN_WORDS)) for status, rest in _IN_WORDS.findall(body)}
    wanted = {(status, len(fields_of(status, script.statuses[status]))) for status in in_words}
    if joined != wanted:
        raise HeaderError(f"the header returns {sorted(wanted)} in words, the body returns {sorted(joined)}")
