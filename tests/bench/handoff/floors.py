"""The floor of two hops; that of one hop is `relock.cli._bench.floor.hops`. Neither is ever changed with relock."""

from pathlib import Path

from relock.cli._bench.floor.hops import OneHop
from relock.cli._bench.work import Job

FOLDER = Path(__file__).parent


class TwoHops(OneHop):
    """The release wakes the head of the queue, which then takes the lock."""

    LEAVE = FOLDER / "wake.lua"

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._claim = self._packed(FOLDER / "claim.lua")

    def acquire(self) -> int:
        """At once if the lock is free, else by a script of its own when the message has come."""
        if not self.enter():
            self._messages.receive()
            while not self._commands.call(self._claim):
                self._messages.receive()
        return 0
