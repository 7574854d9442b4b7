"""Clients that take, wait, die and come back, in a random order, on one virtual master."""

from random import Random
from typing import Any, ClassVar

from attrs import Factory, define

from relock._keys import LockKeys
from relock.testing._master import VirtualMaster
from support.script_master import run_virtual

BEGIN_US = 1_700_000_000_000_000
CLIENTS = ["me", "you", "they"]
LEASE_MS = 2_000


@define
class Walk:
    """A random walk of clients, and what they believe.

    Attributes:
        DEFAULTS: usual arguments of the scripts.
        waiting: waiters and their tickets.
        holding: owners, and until when (us) they believe to be that.
    """

    KEYS: ClassVar[LockKeys]
    DEFAULTS: ClassVar[dict[str, Any]]

    draw: Random
    now_us: int = BEGIN_US
    listening: set[str] = Factory(set)
    inbox: list[bytes] = Factory(list)
    waiting: dict[bytes, int] = Factory(dict)
    holding: dict[bytes, int] = Factory(dict)
    tokens: list[int] = Factory(list)
    count: int = 0
    master: VirtualMaster = None  # type: ignore[assignment]

    def __attrs_post_init__(self) -> None:
        self.master = VirtualMaster(lambda: self.now_us, "this")
        for client in CLIENTS:
            self.turn_on(client)

    def hear(self, _: bytes, message: bytes) -> None:
        self.inbox.append(message)

    def turn_on(self, client: str) -> None:
        self.listening.add(client)
        self.master.subscribe(f"lock:client:{client}".encode(), self.hear)

    def turn_off(self, client: str) -> None:
        self.listening.remove(client)
        self.master.unsubscribe(f"lock:client:{client}".encode(), self.hear)

    def keys_for(self, _name: bytes) -> LockKeys:
        """Return the keys with which the owner of this name asks; their kind decides which scripts it sends."""
        return self.KEYS

    def call(self, operation: str, *rest: Any, keys: LockKeys | None = None, **other: Any) -> list[Any]:
        self.now_us += self.draw.randint(1, 900)
        keys = keys or self.keys_for(other.get("owner", b""))
        return run_virtual(self.master, keys, keys.script_name(operation), *rest, **{**self.DEFAULTS, **other})

    def queue(self) -> list[bytes]:
        """Return the waiters whose clients listen and send heartbeats, in their order."""
        deadlines = dict(self.master.contents(self.KEYS.waiters) or [])
        return [
            waiter
            for waiter, _ in self.master.contents(self.KEYS.queue) or []
            if client_of(waiter) in self.listening and deadlines[waiter] > self.now_us // 1000
        ]

    def ahead_of(self, waiter: bytes) -> list[bytes]:
        """Return those of `queue` that come before this waiter."""
        ticket = self.waiting.get(waiter, 2**53)
        return [other for other in self.queue() if other != waiter and self.waiting[other] < ticket]

    def running(self) -> dict[bytes, bytes]:
        """Return the holds whose leases run."""
        ends = dict(self.master.contents(self.KEYS.leases) or [])
        fields = self.master.contents(self.KEYS.lock) or {}
        return {owner: value for owner, value in fields.items() if ends.get(owner, 0) > self.now_us // 1000}

    def may_pass(self, _waiter: bytes, ahead: list[bytes]) -> bool:
        """Return whether this waiter may have been served though these come before it."""
        return not ahead

    def granted(self, owner: bytes, token: int, lease_ms: int) -> None:
        self.tokens.append(token)
        self.holding[owner] = self.now_us + lease_ms * 1000

    def enqueue(self, waiter: bytes) -> None:
        ahead = self.ahead_of(waiter)
        reply = self.call("enqueue", owner=waiter, lease_ms=LEASE_MS, token_ms=LEASE_MS + 1_000, alive_ms=6_000)
        if reply[0] == b"granted":
            assert self.may_pass(waiter, ahead), "first come, first served"
            self.waiting.pop(waiter, None)
            self.granted(waiter, reply[2], LEASE_MS)
        else:
            self.waiting[waiter] = reply[5]

    def release(self, owner: bytes) -> None:
        del self.holding[owner]
        before = self.queue()
        self.call("release", owner=owner, hand=self.draw.choice([0, 1, 1]))
        grants = [message for message in self.inbox if message.startswith(b"grant")]
        assert not grants or before[0].partition(b":")[2] == grants[0].split(b" ")[1]

    def heartbeats(self) -> None:
        for client in sorted(self.listening):
            mine = [(ticket, waiter) for waiter, ticket in self.waiting.items() if client_of(waiter) == client]
            for keys in {self.keys_for(waiter): None for _, waiter in mine}:
                rest = [item for pair in mine if self.keys_for(pair[1]) == keys for item in pair]
                turn = self.call("heartbeat", *rest, keys=keys, client=client, alive_ms=6_000)[3]
                if turn in self.waiting:
                    self.enqueue(turn)

    def settle(self) -> None:
        """Have all that were told do what they were told."""
        while self.inbox:
            kind, uuid, *rest = self.inbox.pop(0).split(b" ")
            waiter = next((waiter for waiter in self.waiting if waiter.partition(b":")[2] == uuid), None)
            if kind == b"grant":
                assert waiter is not None
                del self.waiting[waiter]
                self.granted(waiter + b"~" + rest[0], int(rest[1]), int(rest[3]))
            elif waiter is not None:
                self.enqueue(waiter)

    def new_waiter(self, client: str, uuid: str) -> bytes:
        """Return the name of a waiter that asks from now on."""
        raise NotImplementedError

    def do(self, deed: str) -> None:
        if deed == "take":
            self.count += 1
            self.enqueue(self.new_waiter(self.draw.choice(sorted(self.listening) or ["me"]), f"{self.count:x}"))
        elif deed == "release" and self.holding:
            self.release(self.draw.choice(sorted(self.holding)))
        elif deed == "leave" and self.waiting:
            waiter = self.draw.choice(sorted(self.waiting))
            del self.waiting[waiter]
            self.call("leave", owner=waiter)
        elif deed == "time":
            self.now_us += self.draw.choice([300_000, 2_500_000])
        elif deed == "die":
            client = self.draw.choice(CLIENTS)
            (self.turn_off if client in self.listening else self.turn_on)(client)

    def step(self, *more_deeds: str) -> None:
        deed = self.draw.choice(["take", "take", "take", "release", "release", "leave", "time", "die", *more_deeds])
        self.do(deed)
        self.settle()
        if deed in ("time", "die"):
            self.heartbeats()
            self.settle()

    def check(self) -> None:
        assert self.tokens == sorted(set(self.tokens)), "tokens rise"
        keys = self.master.keys()
        assert all(self.master.read("PTTL", key) >= 0 for key in keys), "every key has an end"


def client_of(name: bytes) -> str:
    return name.partition(b":")[0].decode()
