"""Lua scripts: found, read, packed.

Each file of ``lua/`` begins with a header that is parsed here and is the script's signature: Python passes KEYS and
ARGV by the names that the header gives them, so that swapped arguments can't be written. Tests see to it that header
and body agree.

A reply is an array, or *words*, which take a master less time: see `relock._replies`. The header has words in quotation
marks.

A line ``--#include NAME`` is replaced by the fragment ``lua/_lib/NAME.lua``, and ``--#include NAME PIECE`` by one piece
of it: the lines from ``--#piece PIECE`` to ``--#end``.

The wheel carries ``lua/`` as ``relock/_lua``, which may be in a zip file (zipapp, PEX); an editable install and a
checkout use the top-level folder.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable
from operator import call as apply
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from attrs import evolve, field, frozen

from relock._caches import Cache
from relock._keys import FOR_REDISSON, SCRIPTS_FOR_REDISSON, TAILS, LockKeys, client_channel
from relock._replies import Matcher, fields_of, match_nothing, matcher_of, pattern_of, shape_of

SECTIONS = ("KEYS", "ARGV", "RETURNS", "WRITES", "PUBLISHES", "REPEATABLE")
CONNECTION_ARGUMENTS = ("not_after_us", "incarnation", "guard_ms")
TOKEN_MAX = 8 * 10**15 - 1  # a clock reaches this many microseconds in the year 2223
REST = "..."

# Parts of the beginning of a command; the lock's key stands between each two of them.
Frame = tuple[bytes, ...]

# The fragment of a Cluster's scripts, in place of another.
_ON_CLUSTER = {"channel": "channel_on_cluster"}
# The fragment of the scripts for locks that are shared with Redisson, in place of another.
_FOR_REDISSON = {"freed": "freed_for_redisson"}

_INCLUDE = re.compile(r"^ *--#include (\w+)(?: (\w+))?$", re.MULTILINE)
_PIECE = re.compile(r"^ *--#piece (\w+)\n(.*?)\n *--#end$", re.MULTILINE | re.DOTALL)
_QUOTED = re.compile(r"^'([^']*)'")


class ScriptError(Exception):
    """A file of ``lua/`` is missing, or a piece of one; the message names the file."""


class Parameter(NamedTuple):
    """One of KEYS or ARGV: its name, its Redis type or unit, and what it means."""

    name: str
    unit: str
    meaning: str

    @property
    def optional(self) -> bool:
        """True if callers may leave the parameter out."""
        return self.meaning.endswith("; optional")


@frozen(eq=False, repr=False)  # `load` makes one instance of each script
class Script:
    """Script of ``lua/``, ready to be sent as a command."""

    name: str
    purpose: str
    keys: tuple[Parameter, ...]
    arguments: tuple[Parameter, ...]
    statuses: dict[str, str]
    in_words: frozenset[bytes]
    header: dict[str, tuple[str, ...]]
    source: bytes
    cluster_source: bytes
    sha: str
    frames: Cache[int | tuple[int, str], Frame] = field(factory=Cache, init=False)

    @cached_property
    def own_arguments(self) -> tuple[str, ...]:
        """Names of the arguments that a flow gives by name; the connection that sends the script adds its own."""
        return tuple(p.name for p in self.arguments if p.name not in (*CONNECTION_ARGUMENTS, REST))

    @cached_property
    def connection_arguments(self) -> tuple[str, ...]:
        """Names of the arguments that only the connection can know: not-after time, incarnation and guard."""
        return tuple(p.name for p in self.arguments if p.name in CONNECTION_ARGUMENTS)

    @cached_property
    def shapes(self) -> dict[bytes, list[type]]:
        """Types of the status and the fields of each reply, by status."""
        return {status.encode(): shape_of(status, line) for status, line in self.statuses.items()}

    @cached_property
    def match_usual(self) -> Matcher:
        """Matcher of the usual reply, the first line of RETURNS, as it comes over the wire: without a parser.

        The groups are the status and the fields, of which `usual_types` makes the reply.
        """
        status, line = next(iter(self.statuses.items()))
        return matcher_of(status, line) if status.encode() in self.in_words else match_nothing

    @cached_property
    def usual_types(self) -> tuple[type, ...]:
        """Types by which the groups of `match_usual` become the values that they stand for."""
        return tuple(shape_of(*next(iter(self.statuses.items()))))

    def parse_words(self, words: bytes) -> list[Any] | None:
        """Return the array that a reply in words stands for; None where this script gives no such reply."""
        status = words.partition(b" ")[0]
        pattern = self._words.get(status)
        found = None if pattern is None else pattern.fullmatch(words)
        return None if found is None else [*map(apply, self.shapes[status], found.groups())]

    @cached_property
    def _words(self) -> dict[bytes, re.Pattern[bytes]]:
        """Patterns of the replies in words, by status."""
        lines = {status.encode(): (status, line) for status, line in self.statuses.items()}
        return {status: pattern_of(*lines[status]) for status in self.in_words}

    @cached_property
    def token_places(self) -> dict[bytes, int]:
        """Index of the fencing token in each reply that has one, by status.

        A token is one above the last one, or a clock, so none is larger than `TOKEN_MAX`. A larger one must
        not be believed: the next one would have to be larger still, and Lua can't count beyond 2**53.
        """
        fields = {status.encode(): fields_of(status, line) for status, line in self.statuses.items()}
        return {status: 1 + names.index("token") for status, names in fields.items() if "token" in names}

    @cached_property
    def gives(self) -> bool:
        """True if the script may give a hold or lengthen one, which counts only once enough replicas have it."""
        return not {"granted", "extended", "healed"}.isdisjoint(self.statuses)

    @cached_property
    def on_cluster(self) -> "Script":
        """Script for a Cluster: see ``lua/_lib/channel_on_cluster.lua``. The same script, if it sends no messages."""
        source = self.cluster_source
        return self if source == self.source else evolve(self, source=source, sha=_sha(source))

    @cached_property
    def connection_argument_count(self) -> int:
        """Number of `connection_arguments`: 0, 1 (the not-after time) or 3 (with the incarnation and the guard)."""
        return len(self.connection_arguments)

    @cached_property
    def is_vote(self) -> bool:
        """True if a call names the master's incarnation: the master must have a vote in that one."""
        return "incarnation" in self.connection_arguments

    @cached_property
    def sha_bytes(self) -> bytes:
        """Name of the script among those that a master knows, as it goes over the wire."""
        return self.sha.encode()

    @cached_property
    def _all_key_names(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.keys)

    @cached_property
    def _plain_key_names(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.keys if not p.optional)

    def call(self, keys: LockKeys, *rest: bytes | str | int, **arguments: bytes | str | int) -> "Call":
        """Return a call of this script: its own arguments by name, those of ``...`` after them.

        Raises:
            TypeError: the names are not those of the header.
        """
        if not rest and tuple(arguments) == self.own_arguments:
            ordered = arguments.values()
        elif set(arguments) == set(self.own_arguments):
            ordered = {name: arguments[name] for name in self.own_arguments}.values()
        else:
            raise TypeError(f"{self.name} takes {self.own_arguments}, not {tuple(arguments)}")
        own = b"".join([pack_argument(_encode(value)) for value in ordered])
        return Call(self, keys, own, b"".join([pack_argument(_encode(item)) for item in rest]), len(rest))

    def prepare(self, **arguments: bytes | str | int) -> "Prepared":
        """Return a prepared call without its first own argument, which comes with each call.

        The last own argument may be missing as well: `Prepared.completed` adds it.

        Raises:
            TypeError: the names are not those of the header.
        """
        if tuple(arguments) not in (self.own_arguments[1:], self.own_arguments[1:-1]):
            raise TypeError(f"{self.name} is prepared with {self.own_arguments[1:]}, not {tuple(arguments)}")
        return Prepared(self, b"".join([pack_argument(_encode(value)) for value in arguments.values()]))

    def usual_head(self, keys: LockKeys, *, guarded: bool) -> bytes:
        """Return the beginning of the command on the wire: EVALSHA and the keys.

        The frame is the same for all locks whose keys are of the same length; a guarded one names the prefix as well.
        """
        lock = keys.lock
        key = (len(lock), keys.prefix) if guarded else len(lock)
        frame = self.frames.get(key)
        if frame is None:
            frame = self._frame(keys, b"EVALSHA", self.sha_bytes, 0, guarded=guarded)
            self.frames.keep(key, frame, sum(map(len, frame)))
        return lock.join(frame)

    def head(self, keys: LockKeys, command: bytes, body: bytes, rest: int, *, guarded: bool) -> bytes:
        """Return the beginning of a command with `rest` arguments for ``...``."""
        return keys.lock.join(self._frame(keys, command, body, rest, guarded=guarded))

    def _frame(self, keys: LockKeys, command: bytes, body: bytes, rest: int, *, guarded: bool) -> Frame:
        names = self._all_key_names if guarded else self._plain_key_names
        words = 3 + len(names) + len(self.own_arguments) + self.connection_argument_count + rest
        parts = [b"*%d\r\n%b" % (words, b"".join(map(pack_argument, (command, body, b"%d" % len(names)))))]
        for name in names:
            if name == "master":
                parts[-1] += pack_argument(keys.master)
            else:
                tail = TAILS[name]
                parts[-1] += b"$%d\r\n" % (len(keys.lock) + len(tail))
                parts.append(b"%b\r\n" % tail)
        return tuple(parts)


class Call(NamedTuple):
    """Script with its keys and arguments, packed, as a flow sends it to every master.

    The arguments of a connection (not-after time, incarnation, guard) are missing: the connection adds them between
    `own` and `rest`.
    """

    script: Script
    keys: LockKeys
    own: bytes
    rest: bytes = b""
    rest_count: int = 0

    def pack(self, connection_arguments: bytes, guarded: bool, source: bool = False) -> bytes:
        """Return the command as bytes for the wire; with `source`, for a master that does not know the script."""
        script, keys, own, rest, rest_count = self
        if source:
            head = script.head(keys, b"EVAL", script.source, rest_count, guarded=guarded)
        elif rest_count:
            head = script.head(keys, b"EVALSHA", script.sha_bytes, rest_count, guarded=guarded)
        else:
            head = script.usual_head(keys, guarded=guarded)
        return head + own + connection_arguments + rest


class Prepared(NamedTuple):
    """Call without the keys and the first argument; without the last argument as well, until it is `completed`."""

    script: Script
    others: bytes

    def completed(self, last: int) -> "Prepared":
        """Return the same call with its last argument."""
        return Prepared(self.script, self.others + pack_argument(b"%d" % last))

    def call(self, keys: LockKeys, first: bytes) -> Call:
        """Return the call with these keys and this first argument."""
        return Call(self.script, keys, b"$%d\r\n%b\r\n%b" % (len(first), first, self.others))

    def pack(self, keys: LockKeys, first: bytes, connection_arguments: bytes, guarded: bool) -> bytes:
        """Return the same bytes as `Call.pack` of this `call`, without making one."""
        lock = keys.lock
        frame = self.script.frames.get((len(lock), keys.prefix) if guarded else len(lock))
        head = self.script.usual_head(keys, guarded=guarded) if frame is None else lock.join(frame)
        return b"%b$%d\r\n%b\r\n%b%b" % (head, len(first), first, self.others, connection_arguments)


def _encode(value: bytes | str | int) -> bytes:
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else b"%d" % value


def pack_argument(value: bytes) -> bytes:
    """Return one argument as it goes over the wire."""
    return b"$%d\r\n%b\r\n" % (len(value), value)


def find_folder() -> Traversable:
    """Return the folder of the scripts: in the package, or at the top of the checkout (an editable install).

    Raises:
        ScriptError: in neither place, so the installation is broken.
    """
    checkout = Path(__file__).resolve().parent.parent.parent
    for folder in (files("relock") / "_lua", checkout / "lua"):
        if folder.is_dir():
            return folder
    raise ScriptError(f"no Lua scripts beside {__file__}: the installation of redis-relock is incomplete")


def _read(path: Traversable) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise ScriptError(f"{path}: {error.strerror or 'there is no such file'}") from error


@cache
def load(name: str, folder: Traversable | None = None) -> Script:
    """Return the script ``lua/NAME.lua``, read when it is first needed; before NAME may be `FOR_REDISSON`.

    Raises:
        ScriptError: the file is missing, or a fragment of it.
    """
    folder, plain = folder or find_folder(), name.removeprefix(FOR_REDISSON)
    purpose, sections, body = _split(_read(folder / f"{plain}.lua"))
    source = _expand(folder, body, {} if plain == name else _FOR_REDISSON).encode()
    on_cluster = _expand(folder, body, _ON_CLUSTER).encode()
    statuses, in_words = _statuses(sections["RETURNS"])
    return Script(
        name=plain,
        purpose=purpose,
        keys=_parameters(sections["KEYS"]),
        arguments=_parameters(sections["ARGV"]),
        statuses=statuses,
        in_words=in_words,
        header=sections,
        source=source,
        cluster_source=on_cluster,
        sha=_sha(source),
    )


@cache
def load_all() -> None:
    """Load every script now, so that no call reads a file, which an upgrade in place may have replaced meanwhile."""
    for name in script_names():
        load(name)
    probe_source()


def load_for_redisson() -> list[Script]:
    """Load the scripts that only a client with the option ``redisson`` needs, for the same reason; return them."""
    return [load(FOR_REDISSON + name) for name in SCRIPTS_FOR_REDISSON]


def probe(prefix: str | None) -> tuple[str | bytes, ...]:
    """Return the command that tries, in a script, what a service may refuse there: see ``lua/_lib/probe.lua``.

    Without a `prefix`, it sends no message.
    """
    channels = () if prefix is None else (client_channel(prefix, "probe"),)
    return "EVAL", probe_source(), "0", *channels


@cache
def probe_source() -> bytes:
    """Return the script of `probe`."""
    folder = find_folder()
    return _expand(folder, _fragment(folder, "probe")).encode()


def _sha(source: bytes) -> str:
    return hashlib.sha1(source, usedforsecurity=False).hexdigest()


def script_names() -> list[str]:
    """Return the names of all scripts, in alphabetical order."""
    names = [path.name for path in find_folder().iterdir()]
    return sorted(name.removesuffix(".lua") for name in names if name.endswith(".lua"))


def _split(text: str) -> tuple[str, dict[str, tuple[str, ...]], str]:
    """Return a file's purpose, the lines of each section of its header, and its body."""
    head, _, body = text.partition("\n\n")
    lines = [line.removeprefix("--") for line in head.splitlines()]
    sections: dict[str, list[str]] = {}
    purpose: list[str] = []
    current = purpose
    for line in lines:
        title = line.strip()
        if title in SECTIONS:
            current = sections[title] = []
        elif title:
            current.append(title)
    return " ".join(purpose), {title: tuple(lines) for title, lines in sections.items()}, body


def _parameters(lines: Sequence[str]) -> tuple[Parameter, ...]:
    return tuple([Parameter(*line.split(None, 2)) for line in lines])


def _expand(folder: Traversable, text: str, others: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the text with its fragments, and theirs, put in; `others` names fragments that replace some of them."""

    def put_in(match: re.Match[str]) -> str:
        return _expand(folder, _fragment(folder, others.get(match[1], match[1]), match[2]), others)

    return _INCLUDE.sub(put_in, text)


def _fragment(folder: Traversable, name: str, piece: str | None = None) -> str:
    """Return a fragment, or one piece of it."""
    path = folder / "_lib" / f"{name}.lua"
    text = _read(path).rstrip()
    if piece is None:
        return text
    pieces: dict[str, str] = dict(_PIECE.findall(text))
    if piece not in pieces:
        raise ScriptError(f"{path}: there is no piece {piece}")
    return pieces[piece]


def _statuses(lines: Sequence[str]) -> tuple[dict[str, str], frozenset[bytes]]:
    """Return the lines of RETURNS by status, without quotation marks, and the statuses of those that had some."""
    plain = [_QUOTED.sub(r"\1", line) for line in lines]
    statuses = {line.split(None, 1)[0]: line for line in plain}
    quoted = [line.split(None, 1)[0].lstrip("'") for line in lines if line.startswith("'")]
    return statuses, frozenset(status.encode() for status in quoted)
