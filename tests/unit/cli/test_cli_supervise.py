"""Supervision: when `relock run` ends its command, on a clock of the test's own."""

import signal

import pytest
from attrs import define, field

from relock.cli import _supervise
from relock.cli._supervise import Limits, supervise

TERM_AT, KILL_AT = 10.0 - 3.0, 10.0 - 0.05


@define
class World:
    """A command, a lock and signals, over virtual time."""

    deadline: float = 10.0
    ends_at: float = float("inf")
    ends_after_term: float = float("inf")
    arriving: list[tuple[float, int]] = field(factory=list)
    lost_at: float = float("inf")
    now: float = 0.0
    sent: list[tuple[float, int]] = field(factory=list)
    sleeps: int = 0

    def poll(self) -> int | None:
        return 0 if self.now >= self.ends_at else None

    def send(self, signum: int) -> None:
        self.sent.append((self.now, signum))
        if signum == signal.SIGKILL:
            self.ends_at = self.now
        elif signum == signal.SIGTERM:
            self.ends_at = min(self.ends_at, self.now + self.ends_after_term)

    def remaining(self) -> float:
        return 0.0 if self.now >= self.lost_at else max(0.0, self.deadline - self.now)

    def wait(self, seconds: float) -> list[int]:
        self.sleeps += 1
        moments = [at for at in (self.ends_at, self.lost_at, *(at for at, _ in self.arriving)) if at > self.now]
        self.now = min([self.now + max(0.0, seconds), *moments])
        return [signum for at, signum in self.arriving if at == self.now]

    def run(self) -> bool:
        return supervise(self, self, self, Limits.of(9.0, 3.0))  # type: ignore[arg-type]


def test_a_command_that_ends_in_time_is_left_alone() -> None:
    world = World(ends_at=5.0)
    assert world.run() is False
    assert world.sent == []
    assert world.sleeps == 1


def test_a_lock_that_is_not_renewed_costs_sigterm_at_the_grace_and_sigkill_before_the_end() -> None:
    world = World()
    assert world.run() is True
    assert [signum for _, signum in world.sent] == [signal.SIGTERM, signal.SIGCONT, signal.SIGKILL]
    assert [at for at, _ in world.sent] == pytest.approx([TERM_AT, TERM_AT, KILL_AT], abs=0.01)
    assert world.ends_at < world.deadline
    assert world.sleeps < 5


def test_what_is_said_of_a_signal_comes_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes may have to wait until the output is read, and the lease may end meanwhile."""
    world = World()
    sent_before: list[list[int]] = []
    monkeypatch.setattr(_supervise, "say", lambda _text: sent_before.append([signum for _, signum in world.sent]))
    world.run()
    first, second = sent_before
    assert signal.SIGTERM in first
    assert signal.SIGKILL in second


def test_a_command_that_obeys_sigterm_is_not_killed() -> None:
    world = World(ends_after_term=1.0)
    assert world.run() is True
    assert signal.SIGKILL not in [signum for _, signum in world.sent]


def test_a_lost_lock_costs_sigkill_at_once() -> None:
    world = World(lost_at=2.0)
    assert world.run() is True
    assert world.sent == [(2.0, signal.SIGKILL)]


def test_a_renewal_moves_the_end() -> None:
    class Renewed(World):
        def remaining(self) -> float:
            self.deadline = max(self.deadline, self.now + 6.0)
            return super().remaining()

    world = Renewed(ends_at=100.0)
    assert world.run() is False
    assert world.sent == []


def test_signals_are_passed_on_but_sigchld() -> None:
    world = World(ends_at=5.0, arriving=[(1.0, signal.SIGTERM), (2.0, signal.SIGCHLD), (3.0, signal.SIGHUP)])
    assert world.run() is False
    assert world.sent == [(1.0, signal.SIGTERM), (3.0, signal.SIGHUP)]
