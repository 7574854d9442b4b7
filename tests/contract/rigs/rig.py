"""Rig of the contract's tests: a driver, its masters, and the lines between them."""

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from support.proxy import Fault, Line, Match, calls_script

from contract.rigs.calls import Kind, Permits, leave, make, take
from contract.rigs.watch import Watch
from relock import Client, Lock, QuorumError

NODE_TIMEOUT = 10.0  # seconds, in real time: longer than any machine is busy with something else
VIRTUAL_NODE_TIMEOUT = 2.0  # seconds, in virtual time, where nothing is busy
BRIEF = 0.1  # seconds: the node timeout where a test waits for silent masters. Other calls that fail by it are
# tried again, or must fail anyway.
TTL = 60.0  # seconds: no lease ends during a test, so a hold that is gone was released
SOON = 30.0  # seconds after which a wait has failed; less than a lease


class Interrupted(BaseException):
    """Exception that the tests raise in the middle of something; nothing in relock knows the class."""


class Running(Protocol):
    """A function that runs beside the test."""

    @property
    def is_over(self) -> bool:
        """Return whether the function has ended."""

    def result(self) -> Any:
        """Wait for its end; return the function's result, or raise its error."""


class Rig(ABC):
    """One driver over some masters.

    Attributes:
        masters: the number of masters.
        lines: the way to each master, where faults can be armed.
        watch: sees the steps of the thread that the test runs in, in any client of the rig.
        slack: seconds by which something may last longer than promised because this machine is slow.
        sleep: the step before a waiter sleeps.
        shares_connections: all calls of a thread use one connection to each master, and no call passes another there.
    """

    lines: Sequence[Line]
    watch: Watch
    slack: float
    sleep: str = "before queue.get"
    shares_connections: bool = False

    def __init__(self, masters: int) -> None:
        self.masters = masters
        self.quorum = masters // 2 + 1
        self.failures = Failures()

    # Running --------------------------------------------------------------------------------------------------------

    @abstractmethod
    def play(self, test: Callable[[], object]) -> None:
        """Run a test in a thread of the rig's kind; all methods below are for that thread."""

    @abstractmethod
    def client(self, *, ttl: float = TTL, node_timeout: float = NODE_TIMEOUT, **options: Any) -> Client:
        """Return a client behind the lines; the watch sees all its steps."""

    @abstractmethod
    def clock(self) -> float:
        """Return the time (s): virtual if the rig's time is virtual."""

    @abstractmethod
    def start(self, function: Callable[[], Any]) -> Running:
        """Run a function beside the test."""

    @abstractmethod
    def until(self, predicate: Callable[[], object], what: str) -> None:
        """Wait until `predicate` is true; fail after `SOON`, naming `what`."""

    @abstractmethod
    def interrupt(self, call: Callable[[], object], when: Callable[[], object]) -> bool:
        """Make the call, and raise `Interrupted` in it once `when()` is true; return whether that ended the call."""

    @abstractmethod
    def close(self) -> None:
        """End the clients and the servers."""

    # The masters ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def ask(self, master: int, *words: str | int) -> Any:
        """Send one command to one master, past every line."""

    def counts(self, name: str) -> list[int]:
        """Return the levels of all holders of the lock on each master, or the number of permits; 0 where it is free."""
        counts = []
        for master in range(self.masters):
            holders = self.ask(master, "HKEYS", key_of(name))
            values = [self.ask(master, "HGET", key_of(name), owner.decode()) or b"0" for owner in holders]
            levels = [int(value.partition(b" ")[0]) for value in values]  # behind a blank there may be a note
            counts.append(sum(levels) + self.ask(master, "HLEN", permits_key_of(name)))
        return counts

    def permits(self, name: str) -> list[dict[bytes, int]]:
        """Return the owners of permits on each master, each with the slot; -n for n permits at once."""
        found = []
        for master in range(self.masters):
            owners = self.ask(master, "HKEYS", permits_key_of(name))
            values = [self.ask(master, "HGET", permits_key_of(name), owner.decode()) for owner in owners]
            found.append({owner: int(value) for owner, value in zip(owners, values, strict=True) if value is not None})
        return found

    def have_permits(self, name: str, count: int) -> bool:
        """Return whether so many owners have a permit on a quorum, and no other owner has anything."""
        owners = Counter(owner for held in self.permits(name) for owner in held)
        return len(owners) == count and all(masters >= self.quorum for masters in owners.values())

    def agree_on(self, name: str, count: int) -> bool:
        """Return whether a quorum has this hold count, and no master another one; or this number of permits.

        A master that was being connected when the lock was taken has no hold yet: the next renewal gives it one.
        """
        counts = self.counts(name)
        return (counts.count(count) >= self.quorum and set(counts) <= {0, count}) or self.have_permits(name, count)

    def holders(self, name: str) -> list[list[bytes]]:
        """Return the holders of the lock, or of permits, on each master."""
        keys = key_of(name), permits_key_of(name)
        return [sorted(owner for key in keys for owner in self.ask(i, "HKEYS", key)) for i in range(self.masters)]

    def queued(self, name: str) -> list[int]:
        """Return the number of waiters for the lock, or for permits, on each master."""
        keys = f"{key_of(name)}:queue", f"{permits_key_of(name)}:queue"
        return [sum(self.ask(master, "ZCARD", key) for key in keys) for master in range(self.masters)]

    def is_queued(self, name: str) -> bool:
        """Return whether a waiter is queued, on a quorum."""
        return sum(map(bool, self.queued(name))) >= self.quorum

    def queues_are(self, name: str, count: int) -> bool:
        """Return whether so many wait, on every master."""
        return self.queued(name) == [count] * self.masters

    def is_free(self, name: str) -> bool:
        """Return whether no key of the lock or the semaphore is left on any master, but for its token."""
        keys = [f"{key_of(name)}{part}" for part in ("", ":leases", ":queue", ":waiters")]
        keys += [f"{permits_key_of(name)}{part}" for part in ("", ":leases", ":queue", ":waiters")]
        return not any(self.ask(master, "EXISTS", *keys) for master in range(self.masters))

    def until_free(self, name: str, after: str) -> None:
        """Wait until no key of the lock is left; `SOON` is less than a lease."""
        self.until(lambda: self.is_free(name), f"nothing is left anywhere after {after}")

    def occupy(self, master: int, name: str) -> None:
        """Give the lock on this master to another owner."""
        self.ask(master, "HSET", key_of(name), "somebody:else", 1)

    def vacate(self, name: str) -> None:
        """Take the lock away from the other owner of `occupy`."""
        for master in range(self.masters):
            self.ask(master, "HDEL", key_of(name), "somebody:else")

    @property
    def close_seconds(self) -> float:
        """Node timeout of a client whose close waits for masters: a close gives up what they do not answer so long."""
        return 10 * BRIEF + min(self.slack, 4.0)

    # What clients do with them --------------------------------------------------------------------------------------

    def warm_up(self, client: Client, kind: Kind = "one lock") -> None:
        """Open connections to all masters and load the scripts, so that each call takes the same path."""
        lock = make(client, "warm", kind)[1][0]

        def is_warm() -> bool:
            self.take_everywhere(lock, 2)
            try:
                lock.extend()
            except QuorumError:  # a busy machine looks like silent masters where the node timeout is brief
                return False
            return True

        self.until(is_warm, "every master has answered in time")
        leave(lock)

    def take_everywhere(self, lock: Lock | Permits, levels: int) -> None:
        """Acquire so many levels, again and again until every master has the hold, not only a quorum.

        A hold that an earlier attempt has left on one master for a moment does not count.
        """

        def is_taken() -> bool:
            leave(lock)
            try:
                take(lock, levels)
            except QuorumError:  # a busy machine looks like silent masters where the node timeout is brief
                return False
            owners = {tuple(found) for found in self.holders(lock.name)}
            return len(owners) == 1 and self.counts(lock.name) == [levels] * self.masters

        self.until(is_taken, "every master has the hold")

    def until_settled(self, client: Client) -> None:
        """Wait until no count of the client's holds is being written again, or may have to be."""
        session = client._session
        self.until(
            lambda: not session.janitor._checks and not any(hold.settling for hold in session.holds.all()),
            "all counts are settled",
        )

    def until_heard_by_all(self, client: Client) -> None:
        """Wait until every master counts the client as listening: a call goes on once a quorum does."""
        subscriptions = [one for hub in client._session.hubs.all() if hub.is_attended for one in hub.subscriptions]
        self.until(lambda: all(one.is_confirmed for one in subscriptions), "the client listens to every master")

    # Faults ---------------------------------------------------------------------------------------------------------

    def until_asked(
        self, arm: Callable[[Line], Fault], do: Callable[[], object], *, before: Callable[[], object] = lambda: None
    ) -> list[Fault]:
        """Arm a fault on each line and call `do`, until a master was asked; return the faults that found a request.

        No request goes to a master that counts as down, and on a busy machine all masters may count so for a moment.
        Faults that found no request are disarmed, and `before` runs before any is armed.
        """
        found: list[Fault] = []

        def is_asked() -> bool:
            before()
            faults = [arm(line) for line in self.lines]
            do()
            found.extend(fault for line, fault in zip(self.lines, faults, strict=True) if not line.disarm(fault))
            return bool(found)

        self.until(is_asked, "a master was asked")
        return found

    @abstractmethod
    def go_silent(self) -> None:
        """Let nothing through any line from now on, in neither direction; nothing breaks."""


class Failures(logging.Handler):
    """Errors that relock's background threads log: a test must end without any."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the text of the record."""
        self.found.append(self.format(record))


def key_of(name: str) -> str:
    """Return the key of a lock's hold."""
    return f"lock:{{{name}}}"


def leases_key_of(name: str) -> str:
    """Return the key of the leases of a lock's readers."""
    return f"{key_of(name)}:leases"


def permits_key_of(name: str) -> str:
    """Return the key of a semaphore's permits."""
    return f"{key_of(name)}:sem"


def calls(name: str, *scripts: str) -> Match:
    """Match these scripts of relock for one lock or semaphore: requests for another may still be under way."""
    is_one = calls_script(*scripts)
    keys = key_of(name).encode(), permits_key_of(name).encode()
    return lambda words: is_one(words) and any(key in words for key in keys)


def all_struck(faults: Sequence[Fault]) -> bool:
    """Return whether each of these faults has found its request."""
    return all(fault.struck.is_set() for fault in faults)


def all_done(faults: Sequence[Fault]) -> bool:
    """Return whether each of these faults is over."""
    return all(fault.done.is_set() for fault in faults)


def release_all(faults: Sequence[Fault]) -> None:
    """Let these faults release the requests and replies that they hold."""
    for fault in faults:
        fault.release()


def until_in_time(scene: Callable[[float], bool]) -> None:
    """Play a scene until it returns true, each time with more seconds after which a caller in it gives up.

    Others must do something before that. A busy machine may need seconds for it; an idle one should not wait so long.
    """
    assert any(map(scene, (1.0, 5.0, 25.0))), "the others were too late each time"
