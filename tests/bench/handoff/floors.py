"""The floors: what bare sockets and the smallest scripts that are right reach. Never changed with the product's own.

Each worker has two sockets, one for its commands and one for the messages to it, and a queue decides who is next.
"""

from pathlib import Path
from secrets import token_hex

from bench.bare_socket import BareSocket, packed
from relock.cli._bench.work import Job

FOLDER = Path(__file__).parent
LEASE_MS = 10_000


class OneHop:
    """The release gives the lock to the head of the queue, and the message says so."""

    LEAVE = "grant"

    def __init__(self, port: int, name: str) -> None:
        self.me = f"{name}-{token_hex(8)}"
        self._name = name
        self._commands, self._messages = BareSocket(port), BareSocket(port)
        self._messages.call(packed("SUBSCRIBE", self.me))
        self._enter, self._leave = self._packed("enter"), self._packed(self.LEAVE)

    def _packed(self, script: str) -> bytes:
        keys = (self._name, f"{self._name}:queue")
        sha = self._commands.load((FOLDER / f"{script}.lua").read_bytes())
        return packed("EVALSHA", sha, len(keys), *keys, self.me, LEASE_MS)

    def close(self) -> None:
        """Closes its sockets."""
        self._commands.close()
        self._messages.close()

    def acquire(self) -> int:
        """At once if the lock is free, else when the message comes."""
        if not self._commands.call(self._enter):
            self._messages.receive()
        return 0

    def release(self) -> None:
        """One script."""
        self._commands.call(self._leave)


class TwoHops(OneHop):
    """The release wakes the head of the queue, which then takes the lock."""

    LEAVE = "wake"

    def __init__(self, port: int, name: str) -> None:
        super().__init__(port, name)
        self._claim = self._packed("claim")

    def acquire(self) -> int:
        """At once if the lock is free, else by a script of its own when the message has come."""
        if not self._commands.call(self._enter):
            self._messages.receive()
            while not self._commands.call(self._claim):
                self._messages.receive()
        return 0


class Bare:
    """What the workers of one process share: nothing."""

    def __init__(self, job: Job, kind: type[OneHop]) -> None:
        self._kind, self._name = kind, job.name
        self._port = job.ports[0]

    def locker(self) -> OneHop:
        """One for another worker."""
        return self._kind(self._port, self._name)

    def close(self) -> None:
        """The sockets end with their process."""
