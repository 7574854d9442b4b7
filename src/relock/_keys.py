"""Names of all keys and channels, decided here and nowhere else (see ``docs/reference/keys.md``).

Only ``relock bench`` has further keys, for its floor: `relock.cli._bench.floor.masters`.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

# What a name may be, as events, `names` and the command line say it.
LOCK, SEMAPHORE, LATCH = KINDS = "lock", "semaphore", "latch"
READ = "read"  # the kind of a reader's hold; its name is that of a lock
SCRIPTS_FOR_BOTH = ("inspect", "leave")  # scripts that serve a lock's writers and its readers
FOR_REDISSON = "redisson_"  # begins the names of scripts that tell Redisson's waiters as well
SCRIPTS_FOR_REDISSON = ("release", "give_back", "force_release")  # those that leave a lock free

#: Suffixes that turn the key of a hold into the other keys of the same lock, or of the same semaphore.
TAILS = {"lock": b"", "queue": b":queue", "waiters": b":waiters", "token": b":token"}
TAILS |= {"permits": b"", "leases": b":leases", "limit": b":limit", "latch": b""}


class LockKeys(NamedTuple):
    """Keys of one lock, made by `lock_keys`. The hash tag keeps them in one Cluster slot.

    This is a value: the keys of the same lock are equal, wherever they were made.
    """

    prefix: str
    name: str
    lock: bytes

    @property
    def kind(self) -> str:
        """One of `KINDS`: what the keys are for, as operators and events call it."""
        return LOCK

    def script_name(self, operation: str) -> str:
        """Return the name of the script that carries out `operation`, such as ``acquire``, with these keys."""
        return operation

    @property
    def noun(self) -> str:
        """Word for what an owner has, in the texts of errors."""
        return "hold"

    @property
    def queue(self) -> bytes:
        """Key of the waiters, in the order of their tickets."""
        return self.lock + TAILS["queue"]

    @property
    def waiters(self) -> bytes:
        """Key of the waiters' deadlines, until which they count as alive without another heartbeat."""
        return self.lock + TAILS["waiters"]

    @property
    def token(self) -> bytes:
        """Key of the last fencing token."""
        return self.lock + TAILS["token"]

    @property
    def leases(self) -> bytes:
        """Key of the times at which the leases of readers end, or those of permits."""
        return self.lock + TAILS["leases"]

    @property
    def master(self) -> bytes:
        """Key of the marker of the master's incarnation, the same for all locks below a prefix."""
        return master_key(self.prefix).encode()


class ReadKeys(LockKeys):
    """Keys of one lock, for its readers; made by `read_keys`. They are equal only to those of other readers."""

    __slots__ = ()

    @property
    def kind(self) -> str:
        """``"read"``: events and losses tell readers from writers, whose kind is ``"lock"``."""
        return READ

    def script_name(self, operation: str) -> str:
        """Return the name of the script that carries out `operation` with these keys, such as ``read_acquire``."""
        return operation if operation in SCRIPTS_FOR_BOTH else f"read_{operation}"

    @property
    def noun(self) -> str:
        """Word for what an owner has, in the texts of errors."""
        return "read hold"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReadKeys) and tuple.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = LockKeys.__hash__


class RedissonKeys(LockKeys):
    """Keys of one lock that is shared with Redisson, made by `redisson_keys`. They are equal to the lock's own."""

    __slots__ = ()

    def script_name(self, operation: str) -> str:
        """Return the name of the script that carries out `operation`, such as ``redisson_release``, with these keys."""
        return FOR_REDISSON + operation if operation in SCRIPTS_FOR_REDISSON else operation


class PermitKeys(LockKeys):
    """Keys of one semaphore, made by `permit_keys`; `lock` is the key of all its permits."""

    __slots__ = ()

    @property
    def kind(self) -> str:
        """One of `KINDS`, as for a lock."""
        return SEMAPHORE

    def script_name(self, operation: str) -> str:
        """Return the name of the script that carries out `operation` with these keys, such as ``permit_acquire``."""
        return f"permit_{operation}"

    @property
    def noun(self) -> str:
        """Word for what an owner has, in the texts of errors."""
        return "permit"

    @property
    def permits(self) -> bytes:
        """Key of the permits, which the flows that serve locks as well call `lock`."""
        return self.lock

    @property
    def limit(self) -> bytes:
        """Key of an operator's limit, which overrides that of the code."""
        return self.lock + TAILS["limit"]


class LatchKeys(LockKeys):
    """Keys of one latch, made by `latch_keys`; `lock` is the key of the parties that have arrived."""

    __slots__ = ()

    @property
    def kind(self) -> str:
        """One of `KINDS`, as for a lock."""
        return LATCH

    @property
    def latch(self) -> bytes:
        """Key of the parties that have arrived, which what serves locks as well calls `lock`."""
        return self.lock


def lock_keys(prefix: str, name: str) -> LockKeys:
    """Return the keys of the lock `name` below `prefix`."""
    return LockKeys(prefix, name, f"{prefix}:{{{name}}}".encode())


def read_keys(prefix: str, name: str) -> ReadKeys:
    """Return the keys of the lock `name` below `prefix`, for its readers."""
    return ReadKeys(*lock_keys(prefix, name))


def redisson_keys(prefix: str, name: str) -> RedissonKeys:
    """Return the keys of the lock `name` below `prefix`, which is shared with Redisson."""
    return RedissonKeys(*lock_keys(prefix, name))


def permit_keys(prefix: str, name: str) -> PermitKeys:
    """Return the keys of the semaphore `name` below `prefix`."""
    return PermitKeys(prefix, name, f"{prefix}:{{{name}}}:sem".encode())


def latch_keys(prefix: str, name: str) -> LatchKeys:
    """Return the keys of the latch `name` below `prefix`."""
    return LatchKeys(prefix, name, f"{prefix}:{{{name}}}:latch".encode())


def master_key(prefix: str) -> str:
    """Return the key of the marker of a master's incarnation."""
    return f"{prefix}:master"


def client_channel(prefix: str, client: str) -> str:
    """Return the channel on which all waiters of one client are woken."""
    return f"{prefix}:client:{client}"


def name_channel(prefix: str, name: str, client: str) -> str:
    """Return the sharded channel of a Cluster on which one client's waiters for this name are woken."""
    return f"{prefix}:{{{name}}}:client:{client}"


def redisson_channel(lock: bytes) -> bytes:
    """Return the channel on which Redisson's ``RLock`` hears that the lock with this key is free."""
    return b"redisson_lock__channel:" + lock


def scan_pattern(prefix: str, pattern: str) -> str:
    """Return the glob for the keys of all locks and semaphores whose names match `pattern`, their queues included.

    The glob matches others as well: the key of the lock ``a}b`` matches the glob for ``a``. So the caller must filter
    the names that it finds by `glob_filter`.
    """
    _, is_closed = _glob_tokens(pattern.encode())
    # A pattern with an open bracket or a backslash at its end would take the brace as its own.
    wanted = f"{pattern}}}*" if is_closed else "*"
    return f"{escape_glob(prefix)}:{{{wanted}"


def name_and_kind_of(prefix: str, key: str) -> tuple[str, str] | None:
    """Return the name and the kind of the lock or semaphore whose hold or queue `key` is; None for any other key.

    A name may contain braces, and what follows it may not: so the last brace is the one after the name.
    """
    head = f"{prefix}:{{"
    before, _, tail = key.rpartition("}")
    kind = _KINDS_BY_TAIL.get(tail)
    name = before[len(head) :]
    is_a_name = name and not name.startswith("}")  # as `check_name` has it
    return (name, kind) if kind is not None and is_a_name and before.startswith(head) else None


def is_queue(key: str) -> bool:
    """Return whether a key of which `name_and_kind_of` knows the name is that of a queue, and not that of a hold."""
    return key.rpartition("}")[2].endswith(":queue")


#: Kinds by what follows the last brace of the key of a hold, of permits, or of their queue.
_KINDS_BY_TAIL = {"": LOCK, ":queue": LOCK, ":sem": SEMAPHORE, ":sem:queue": SEMAPHORE, ":latch": LATCH}


def escape_glob(text: str) -> str:
    """Return a glob that matches only `text`."""
    return "".join(f"\\{char}" if char in "*?[]\\^-" else char for char in text)


def glob_filter(pattern: str) -> Callable[[str], bool]:
    """Return a predicate for names that match `pattern`: a glob as in Redis, which is not that of `fnmatch`.

    It may have ``*``, ``?`` (one byte, as the server counts), ``[abc]``, ``[a-c]``, ``[^abc]``, and a backslash before
    what is meant literally, in brackets too. Brackets that are never closed end with the pattern. Ranges are of ASCII:
    what the server makes of others depends on whether a C compiler's char has a sign.
    """
    tokens, _ = _glob_tokens(pattern.encode())
    parts: list[list[bytes]] = [[]]
    for token in tokens:
        if token == _STAR:
            parts.append([])
        else:
            parts[-1].append(token)
    first, *rest = (b"".join(part) for part in parts)
    # After a star, the first match will do. Atomic groups keep many stars from backtracking.
    middle = b"".join(b"(?>.*?%s)" % part for part in rest[:-1])
    last = b".*%s" % rest[-1] if rest else b""
    matches = re.compile(first + middle + last, re.DOTALL).fullmatch
    return lambda name: matches(name.encode(errors="replace")) is not None


_STAR = b"*"  # no other token is a lone star: each is a regular expression for one byte


def _glob_tokens(glob: bytes) -> tuple[list[bytes], bool]:
    """Return a glob as regular expressions of one byte each, and stars; and whether it is closed at its end.

    A glob that ends in a backslash, or within brackets, is not closed: text after it would become a part of these.
    """
    tokens, at, is_closed = [], 0, True
    while at < len(glob):
        char = glob[at : at + 1]
        at += 1
        if char == b"[":
            token, at, is_closed = _glob_class(glob, at)
            tokens.append(token)
        elif char in (b"*", b"?"):
            tokens.append(_STAR if char == b"*" else b".")
        else:
            if char == b"\\":
                is_closed = at < len(glob)
                char = glob[at : at + 1] or char
                at += 1
            tokens.append(re.escape(char))
    return tokens, is_closed


def _glob_class(glob: bytes, at: int) -> tuple[bytes, int, bool]:
    """Return the regular expression for brackets with a content from `at` on, their end, and if they are closed."""
    is_negated = glob[at : at + 1] == b"^"
    at += is_negated
    wanted: set[int] = set()
    while at < len(glob) and glob[at] != ord("]"):
        if glob[at] == ord("\\") and at + 1 < len(glob):
            wanted.add(glob[at + 1])
            at += 2
        elif glob[at + 1 : at + 2] == b"-" and at + 2 < len(glob):
            low, high = sorted((glob[at], glob[at + 2]))
            wanted.update(range(low, high + 1))
            at += 3
        else:
            wanted.add(glob[at])
            at += 1
    is_closed = at < len(glob)
    members = set(range(256)) - wanted if is_negated else wanted
    listed = b"".join(b"\\x%02x" % byte for byte in sorted(members))
    return b"[%s]" % listed if members else b"(?!)", at + 1, is_closed
