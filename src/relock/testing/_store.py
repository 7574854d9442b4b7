"""Store of one virtual master: a small model of the Redis commands that the scripts use.

Strings, hashes and sorted sets, each with or without an expiry in milliseconds. Replies and errors are those of Redis
7 and Valkey; scripts call the commands by the names in `COMMANDS`. `begin` tells a `Store` the time, since it reads no
clock. So time stands still during a script, as it does in Redis since 7.2.

Modelled: types, and the error where a key has another type; that a key ends with its last member; lazy expiry; that a
full master refuses writes which take memory, and a replica every write; the order of sorted sets.

Not modelled: databases, options that no script uses, how much memory is in use, eviction; the order of fields in large
hashes (here they keep the order in which they came), and the notation of scores beyond 17 digits.
"""

from collections.abc import Sequence
from typing import Any

from attrs import Factory, define, frozen

from relock.testing._arguments import (
    INTEGER_MAX,
    SYNTAX,
    Argument,
    ReplyError,
    as_bound,
    as_integer,
    as_score,
    as_text,
    limit_of,
    set_options,
    sum_of,
)
from relock.testing._channels import NOT_LOCAL, Channels
from relock.testing._sorted_set import SortedSet, listed


@frozen
class Status:
    """A status reply such as OK: a word of the server, not a stored value."""

    word: bytes


OK = Status(b"OK")
WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
NO_HASH_INTEGER = "ERR hash value is not an integer"
READ_ONLY = "READONLY You can't write against a read only replica."
OUT_OF_MEMORY = "OOM command not allowed when used memory > 'maxmemory'."


@frozen
class Snapshot:
    """Copy of what a store held at some moment, as in an RDB file: with the times at which keys expire."""

    _values: dict[bytes, Any]
    _expiries: dict[bytes, int]

    def restore(self) -> tuple[dict[bytes, Any], dict[bytes, int]]:
        """Return a new copy of the values, and of the times at which their keys expire."""
        return {key: _copy(value) for key, value in self._values.items()}, dict(self._expiries)


@define
class Store(Channels):
    """The keys of one master, and its channels.

    Attributes:
        is_full: out of memory: it refuses a script whose first write takes memory.
        is_read_only: a replica's store: it refuses every write.
        replication: what INFO says of the master's role and replication ids.
        has_written: the script, or the command outside of one, has written.
    """

    is_full: bool = False
    is_read_only: bool = False
    replication: bytes = b""
    has_written: bool = False
    _now_us: int = 0
    _now_ms: int = 0
    _values: dict[bytes, Any] = Factory(dict)
    _expiries: dict[bytes, int] = Factory(dict)

    def begin(self, now_us: int, slot: int | None = None, *, is_leaving: bool = False) -> None:
        """Begin a script with keys in this slot, or a command outside of one, at this time."""
        self.slot = slot
        self.is_leaving = is_leaving
        self._now_us = now_us
        self._now_ms = now_us // 1000
        self.has_written = False

    # The store as a whole -------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Forget everything."""
        self._values = {}
        self._expiries = {}

    def snapshot(self) -> Snapshot:
        """Return a copy of what the store holds now."""
        return Snapshot({key: _copy(value) for key, value in self._values.items()}, dict(self._expiries))

    def load(self, snapshot: Snapshot) -> None:
        """Take over what a snapshot held; keys that have expired meanwhile are gone."""
        self._values, self._expiries = snapshot.restore()

    def take(self, keys: Sequence[bytes]) -> Snapshot:
        """Return a copy of these keys, and forget the keys here."""
        expiries = {key: self._expiries[key] for key in keys if key in self._expiries}
        taken = Snapshot({key: self._values[key] for key in keys}, expiries)
        for key in keys:
            self._drop(key)
        return taken

    def add(self, snapshot: Snapshot, ahead_ms: int) -> None:
        """Take what another store had as well, each key with the rest of its time: this clock is `ahead_ms` ahead."""
        values, expiries = snapshot.restore()
        self._values.update(values)
        self._expiries.update({key: expiry + ahead_ms for key, expiry in expiries.items()})

    def keys(self) -> list[bytes]:
        """Return the keys that have not expired, in alphabetical order."""
        return sorted(key for key in list(self._values) if self._find(key) is not None)

    def contents(self, key: bytes) -> Any:
        """Return a key's value: bytes, a dict of a hash, a list of a sorted set's members and scores; or None."""
        value = self._find(key)
        if isinstance(value, SortedSet):
            return [(member, score) for score, member in value.order]
        return dict(value) if isinstance(value, dict) else value

    def _find(self, key: bytes) -> Any:
        """Return a key's value, or None; remove the key if it has expired."""
        if self.slot is not None:
            self.check_slot(key)
        expiry = self._expiries.get(key)
        if expiry is not None and self._now_ms > expiry:
            self._drop(key)
        value = self._values.get(key)
        if value is None and self.is_leaving:
            raise ReplyError(NOT_LOCAL)
        return value

    def _drop(self, key: bytes) -> None:
        del self._values[key]
        self._expiries.pop(key, None)

    def _string(self, key: bytes) -> bytes | None:
        value: bytes | None = self._find(key)
        if value is None or value.__class__ is bytes:
            return value
        raise ReplyError(WRONG_TYPE)

    def _hash(self, key: bytes) -> dict[bytes, bytes] | None:
        value: dict[bytes, bytes] | None = self._find(key)
        if value is None or value.__class__ is dict:
            return value
        raise ReplyError(WRONG_TYPE)

    def _set(self, key: bytes) -> SortedSet | None:
        value: SortedSet | None = self._find(key)
        if value is None or value.__class__ is SortedSet:
            return value
        raise ReplyError(WRONG_TYPE)

    def _grow(self) -> None:
        """Begin a write that takes memory: a full master refuses it, unless its script has written before."""
        if self.is_full and not self.has_written and not self.is_read_only:
            raise ReplyError(OUT_OF_MEMORY)
        self._write()

    def _write(self) -> None:
        """Begin a write that takes no memory: a replica refuses it."""
        if self.is_read_only:
            raise ReplyError(READ_ONLY)
        self.has_written = True

    # Any key --------------------------------------------------------------------------------------------------------

    def time(self) -> tuple[bytes, bytes]:
        """TIME."""
        seconds, micros = divmod(self._now_us, 1_000_000)
        return b"%d" % seconds, b"%d" % micros

    def info(self, section: bytes) -> bytes:  # noqa: ARG002
        """INFO replication: a script asks for no other section."""
        return self.replication

    def exists(self, *keys: bytes) -> int:
        """EXISTS key [key ...]."""
        return sum([self._find(key) is not None for key in keys])

    def delete(self, *keys: bytes) -> int:
        """DEL key [key ...]."""
        self._write()
        found = 0
        for key in keys:
            if self._find(key) is not None:
                self._drop(key)
                found += 1
        return found

    def pexpire(self, key: bytes, ttl_ms: Argument) -> int:
        """PEXPIRE key milliseconds."""
        self._write()
        expiry = as_integer(ttl_ms) + self._now_ms
        if not -INTEGER_MAX <= expiry <= INTEGER_MAX:
            raise ReplyError("ERR invalid expire time in 'pexpire' command")
        if self._find(key) is None:
            return 0
        if expiry <= self._now_ms:
            self._drop(key)
        else:
            self._expiries[key] = expiry
        return 1

    def pttl(self, key: bytes) -> int:
        """PTTL key."""
        if self._find(key) is None:
            return -2
        expiry = self._expiries.get(key)
        return -1 if expiry is None else expiry - self._now_ms

    def type(self, key: bytes) -> Status:
        """TYPE key."""
        return _TYPES[self._find(key).__class__]

    # Strings --------------------------------------------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        """GET key."""
        return self._string(key)

    def set(self, key: bytes, value: Argument, *options: Argument) -> bytes | Status | None:
        """SET key value [NX | XX] [GET] [PX milliseconds | KEEPTTL]; OK, or with GET what was there before."""
        self._grow()
        value = as_text(value)
        given, ttl_ms = set_options(options)
        self._find(key)  # refuses a key that another node has, or may have
        before = self._string(key) if b"GET" in given else None
        if b"NX" in given or b"XX" in given:
            is_there = self._find(key) is not None
            if is_there is (b"NX" in given):
                return before
        self._values[key] = value
        if ttl_ms is not None:
            self._expiries[key] = self._now_ms + ttl_ms
        elif b"KEEPTTL" not in given:
            self._expiries.pop(key, None)
        return before if b"GET" in given else OK

    def incr(self, key: bytes) -> int:
        """INCR key."""
        self._grow()
        before = self._string(key)
        number = sum_of(0 if before is None else as_integer(before), 1)
        self._values[key] = b"%d" % number
        return number

    # Hashes ---------------------------------------------------------------------------------------------------------

    def hset(self, key: bytes, *pairs: Argument) -> int:
        """HSET key field value [field value ...]."""
        self._grow()
        if not pairs or len(pairs) % 2:
            raise ReplyError("ERR wrong number of arguments for 'hset' command")
        words = [as_text(word) for word in pairs]
        found = self._hash(key)
        if found is None:
            found = self._values[key] = {}
        before = len(found)
        for at in range(0, len(words), 2):
            found[words[at]] = words[at + 1]
        return len(found) - before

    def hincrby(self, key: bytes, field: Argument, by: Argument) -> int:
        """HINCRBY key field increment."""
        self._grow()
        step, name = as_integer(by), as_text(field)
        found = self._hash(key)
        before = found.get(name, b"0") if found else b"0"
        number = sum_of(as_integer(before, NO_HASH_INTEGER), step)
        if found is None:
            found = self._values[key] = {}
        found[name] = b"%d" % number
        return number

    def hget(self, key: bytes, field: Argument) -> bytes | None:
        """HGET key field."""
        found = self._hash(key)
        return found.get(as_text(field)) if found else None

    def hmget(self, key: bytes, *fields: Argument) -> tuple[bytes | None, ...]:
        """HMGET key field [field ...]."""
        found = self._hash(key) or {}
        return tuple([found.get(as_text(field)) for field in fields])

    def hexists(self, key: bytes, field: Argument) -> int:
        """HEXISTS key field."""
        found = self._hash(key)
        return int(found is not None and as_text(field) in found)

    def hkeys(self, key: bytes) -> tuple[bytes, ...]:
        """HKEYS key."""
        return tuple(self._hash(key) or ())

    def hlen(self, key: bytes) -> int:
        """HLEN key."""
        return len(self._hash(key) or ())

    def hdel(self, key: bytes, *fields: Argument) -> int:
        """HDEL key field [field ...]."""
        self._write()
        words = [as_text(field) for field in fields]
        found = self._hash(key)
        if found is None:
            return 0
        before = len(found)
        for field in words:
            found.pop(field, None)
        after = len(found)
        if not after:
            self._drop(key)
        return before - after

    # Sorted sets ----------------------------------------------------------------------------------------------------

    def zadd(self, key: bytes, *words: Argument) -> int:
        """ZADD key [NX] score member [score member ...]."""
        self._grow()
        only_new = words[0] == b"NX" or words[0] == b"nx"
        pairs = words[1:] if only_new else words
        if not pairs or len(pairs) % 2:
            raise ReplyError(SYNTAX)
        added = [(as_text(pairs[at + 1]), as_score(pairs[at])) for at in range(0, len(pairs), 2)]
        found = self._set(key)
        if found is None:
            found = self._values[key] = SortedSet()
        before = len(found.scores)
        for member, score in added:
            if not only_new or member not in found.scores:
                found.put(member, score)
        return len(found.scores) - before

    def zrem(self, key: bytes, *members: Argument) -> int:
        """ZREM key member [member ...]."""
        self._write()
        words = [as_text(member) for member in members]
        found = self._set(key)
        if found is None:
            return 0
        removed = sum([found.remove(member) for member in words])
        if not found.scores:
            self._drop(key)
        return removed

    def lindex(self, key: bytes, _index: Argument) -> None:
        """LINDEX key index: there are no lists here."""
        self._set(key)

    def zcard(self, key: bytes) -> int:
        """ZCARD key."""
        found = self._set(key)
        return len(found.order) if found else 0

    def zscore(self, key: bytes, member: Argument) -> bytes | None:
        """ZSCORE key member."""
        found = self._set(key)
        score = found.scores.get(as_text(member)) if found else None
        return None if score is None else as_text(score)

    def zrank(self, key: bytes, member: Argument) -> int | None:
        """ZRANK key member."""
        found = self._set(key)
        return found.rank(as_text(member)) if found else None

    def zrange(self, key: bytes, start: Argument, stop: Argument, *options: Argument) -> tuple[bytes, ...]:
        """ZRANGE key start stop [WITHSCORES], by rank."""
        return self._ranked(key, start, stop, options, 1)

    def zrevrange(self, key: bytes, start: Argument, stop: Argument, *options: Argument) -> tuple[bytes, ...]:
        """ZREVRANGE key start stop [WITHSCORES]."""
        return self._ranked(key, start, stop, options, -1)

    def _ranked(
        self, key: bytes, start: Argument, stop: Argument, options: tuple[Argument, ...], direction: int
    ) -> tuple[bytes, ...]:
        with_scores = bool(options)
        if with_scores and (len(options) > 1 or as_text(options[0]).upper() != b"WITHSCORES"):
            raise ReplyError(SYNTAX)
        first, last = as_integer(start), as_integer(stop)
        found = self._set(key)
        if found is None:
            return ()
        count = len(found.order)
        first = max(first + count, 0) if first < 0 else first
        last = last + count if last < 0 else last
        order = found.order if direction > 0 else found.order[::-1]
        return listed(order[first : max(last + 1, 0)], with_scores)

    def zrangebyscore(self, key: bytes, smallest: Argument, largest: Argument, *options: Argument) -> tuple[bytes, ...]:
        """ZRANGEBYSCORE key min max [LIMIT offset count]."""
        offset, limit = limit_of(options)
        within = self._within(key, smallest, largest)
        return () if offset < 0 else listed(within[offset : None if limit < 0 else offset + limit], False)

    def zcount(self, key: bytes, smallest: Argument, largest: Argument) -> int:
        """ZCOUNT key min max."""
        return len(self._within(key, smallest, largest))

    def _within(self, key: bytes, smallest: Argument, largest: Argument) -> list[tuple[float, bytes]]:
        low, low_open = as_bound(smallest)
        high, high_open = as_bound(largest)
        found = self._set(key)
        return [
            (score, member)
            for score, member in (found.order if found is not None else ())
            if (low < score if low_open else low <= score) and (score < high if high_open else score <= high)
        ]


COMMANDS = {
    **{name.upper(): name for name in ("time", "info", "exists", "pexpire", "pttl", "type", "get", "set", "incr")},
    **{name.upper(): name for name in ("hset", "hincrby", "hget", "hmget", "hexists", "hkeys", "hlen", "hdel")},
    **{name.upper(): name for name in ("zadd", "zrem", "zcard", "zscore", "zrank", "lindex")},
    **{name.upper(): name for name in ("zcount", "zrange", "zrevrange", "zrangebyscore")},
    "DEL": "delete",
    "PUBLISH": "publish",
    "SPUBLISH": "spublish",
    "PUBSUB": "pubsub",
}
"""The methods of `Store` by the names of their commands."""

PLAIN, STATUS, ARRAY, HOLES = range(4)
KINDS = {
    **dict.fromkeys(("TIME", "HKEYS", "ZRANGE", "ZREVRANGE", "ZRANGEBYSCORE", "PUBSUB"), ARRAY),
    "HMGET": HOLES,
    "SET": STATUS,
    "TYPE": STATUS,
}
"""Kinds of replies that are not one value: an array, an array with missing items, a status."""

_TYPES = {
    type(None): Status(b"none"),
    bytes: Status(b"string"),
    dict: Status(b"hash"),
    SortedSet: Status(b"zset"),
}


def _copy(value: Any) -> Any:
    return value if value.__class__ is bytes else value.copy()
