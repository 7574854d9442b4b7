"""Every key and channel name, decided here and nowhere else (see ``docs/reference/keys.md``)."""

from functools import lru_cache

from attrs import field, frozen


@frozen(eq=False)  # one object per lock: `lock_keys` keeps them, and identity is a fast hash
class LockKeys:
    """The keys of one lock. The hash tag keeps them in one Cluster slot."""

    prefix: str
    name: str
    lock: bytes = field(init=False)
    queue: bytes = field(init=False)
    waiters: bytes = field(init=False)
    token: bytes = field(init=False)
    master: bytes = field(init=False)

    def __attrs_post_init__(self) -> None:
        lock = f"{self.prefix}:{{{self.name}}}"
        self._set("lock", lock)
        self._set("queue", f"{lock}:queue")
        self._set("waiters", f"{lock}:waiters")
        self._set("token", f"{lock}:token")
        self._set("master", f"{self.prefix}:master")

    def _set(self, field_name: str, key: str) -> None:
        object.__setattr__(self, field_name, key.encode())


@lru_cache(maxsize=4096)
def lock_keys(prefix: str, name: str) -> LockKeys:
    """The keys of the lock `name` below `prefix`."""
    return LockKeys(prefix, name)


def master_key(prefix: str) -> str:
    """The marker of a master's incarnation."""
    return f"{prefix}:master"


def client_channel(prefix: str, client: str) -> str:
    """The channel on which all waiters of one client are woken."""
    return f"{prefix}:client:{client}"


def scan_pattern(prefix: str, pattern: str) -> str:
    """The glob for the keys of all locks whose names match `pattern`, their queues included."""
    return f"{escape_glob(prefix)}:{{{pattern}}}*"


def name_of(prefix: str, key: str) -> str | None:
    """The name of the lock that `key` is the hold or the queue of, or None."""
    head = f"{prefix}:{{"
    for tail in ("}:queue", "}"):
        if key.startswith(head) and key.endswith(tail) and len(key) > len(head) + len(tail):
            return key[len(head) : -len(tail)]
    return None


def escape_glob(text: str) -> str:
    """`text` as a glob that matches only itself."""
    return "".join(f"\\{char}" if char in "*?[]\\^-" else char for char in text)
