"""Runs of latches in virtual time: parties that repeat, give up and die, on masters under faults; and their referee.

The referee has three rules.

* A `wait` that returned True needs as many parties that had called `arrive` before.
* If all is well and all parties have arrived since, every waiter returns within a bound.
* In runs whose masters forget nothing, no look says that a party is missing whose arrival was confirmed before.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random

from relock import Latch, QuorumError
from relock.testing import Lab

BOUND_SECONDS = 3.0  # from the moment at which all is well and all have arrived, until every waiter has returned
FAULTS_SECONDS = 12.0
CALM_SECONDS = 3.0  # after the last fault, until clients have noticed that the masters are well
PATIENCE = 300.0


class Run:
    """One run, drawn from a seed.

    Attributes:
        called: the parties that have called `arrive`.
        confirmed: those whose call has returned.
        remembers: no master forgets anything in this run.
        left: how many waiters have not returned.
        violations: what the referee has found.
    """

    def __init__(self, seed: int) -> None:
        self.chance = chance = Random(seed)
        self.lab = Lab(masters=chance.choice((1, 3, 3, 3, 5)), seed=seed)
        self.parties = chance.choice((1, 2, 2, 3, 3, 5))
        self.called: set[str] = set()
        self.confirmed: set[str] = set()
        self.remembers = chance.random() < 0.5
        self.left = 0
        self.striking = 0
        self.violations: list[str] = []

    def play(self) -> list[str]:
        """Play the run to its end; return the violations."""
        chance, lab = self.chance, self.lab
        with lab:
            for server in lab.masters:
                conditions = server.conditions
                conditions.straggles, conditions.straggle = chance.choice(((0.0, 0.0), (0.1, 0.5)))
                conditions.drops = chance.choice((0.0, 0.0, 0.3, 1.0))
                conditions.cuts = chance.choice((0.0, 0.0, 0.02))
                conditions.repeats, conditions.repeated_after = 0.1, (0.0, 0.3, 2.0)
            clients = [lab.client(f"client-{number}", node_timeout=0.3, patience=PATIENCE) for number in range(3)]
            latches = [client.latch("round", self.parties) for client in clients]
            waits = [partial(self._wait, latch) for latch in latches for _ in range(chance.choice((1, 1, 3)))]
            self.left = len(waits)
            early = [f"party-{number}" for number in range(chance.randrange(self.parties + 1))]
            arrivals = [partial(self._arrive, chance.choice(latches), party) for party in early]
            strikes = [self._strike] * chance.choice((1, 2, 3))
            looks = [partial(self._look, latch) for latch in latches]
            self.striking = len(strikes)
            lab.run(*waits, *arrivals, *strikes, *looks, partial(self._finish, latches), within=PATIENCE)
        return self.violations

    # The actors -----------------------------------------------------------------------------------------------------

    def _wait(self, latch: Latch) -> None:
        """Wait with short and long timeouts until the latch is open; errors of the masters are no end of it."""
        chance = self.chance
        self.lab.sleep(chance.random() * 3.0)
        while True:
            try:
                is_open = latch.wait(chance.choice((-1, -1, 0.5, 4.0)))
            except QuorumError:
                is_open = False
                self.lab.sleep(0.1)
            if is_open:
                self.left -= 1
                if len(self.called) < self.parties:
                    self.violations.append(f"open at {self.lab.now:.3f} s for {len(self.called)} of {self.parties}")
                return

    def _arrive(self, latch: Latch, party: str) -> None:
        """Arrive once or several times under faults; the process may fail to hear of it, and never repeat it."""
        chance = self.chance
        self.lab.sleep(chance.random() * FAULTS_SECONDS)
        for _ in range(chance.choice((1, 1, 2, 4))):
            self.called.add(party)
            with suppress(QuorumError):
                latch.arrive(party)
                self.confirmed.add(party)
            self.lab.sleep(chance.random())

    def _look(self, latch: Latch) -> None:
        """Look again and again how many are missing, and if the latch is open."""
        while self.striking:
            confirmed = len(self.confirmed) if self.remembers else 0
            with suppress(QuorumError):
                missing = self.chance.choice((latch.missing, lambda: 0 if latch.wait(0) else self.parties))()
                if missing < self.parties - len(self.called) or (missing and confirmed >= self.parties):
                    self.violations.append(
                        f"{missing} missing at {self.lab.now:.3f} s: {len(self.called)} of {self.parties} have called, "
                        f"{confirmed} were confirmed"
                    )
            self.lab.sleep(self.chance.random())

    def _strike(self) -> None:
        """Let faults happen to the masters, one after the other, with pauses; then let all be well."""
        chance, lab = self.chance, self.lab
        strikes = ("hang", "away", "away", "step", "cut")
        while lab.now < FAULTS_SECONDS:
            server = chance.choice(lab.masters)
            if not server.is_up or server.is_stopped:  # another strike has it
                lab.sleep(chance.random())
                continue
            strike = chance.choice(strikes if self.remembers else (*strikes, "restart", "crash", "flush"))
            if strike == "restart":
                server.crash()
                server.restart(chance.choice((None, server.master.snapshot())))
            elif strike == "crash":
                server.crash()
                lab.sleep(chance.random() * 2.0)
                server.restart()
            elif strike == "away":
                kept = server.master.snapshot()
                server.crash()
                lab.sleep(chance.random() * 3.0)
                server.restart(kept)
            elif strike == "flush":
                server.master.flush()
            elif strike == "hang":
                server.stop()
                lab.sleep(chance.random() * 2.0)
                server.go_on()
            elif strike == "step":
                server.step(chance.choice((-5.0, 5.0) if self.remembers else (-4000.0, 4000.0)))
            elif strike == "cut":
                server.kill_connections()
            lab.sleep(chance.random() * 2.0)
        self.striking -= 1
        for server in lab.masters if not self.striking else ():
            conditions = server.conditions
            conditions.straggles = conditions.drops = conditions.cuts = conditions.repeats = 0.0

    def _finish(self, latches: list[Latch]) -> None:
        """Let all parties arrive once all is well, and check that the waiters return within the bound."""
        lab, chance = self.lab, self.chance
        while self.striking:
            lab.sleep(0.1)
        lab.sleep(CALM_SECONDS)
        for number in range(self.parties):
            self._confirm(chance.choice(latches), f"party-{number}", self.parties - number - 1)
        lab.sleep(BOUND_SECONDS)
        if self.left:
            self.violations.append(f"{self.left} still wait {BOUND_SECONDS} s after all have arrived")
        infos = {latch.info().arrived for latch in latches}
        if not all(len(arrived) >= self.parties for arrived in infos):
            self.violations.append(f"not all are named: {infos}")

    def _confirm(self, latch: Latch, party: str, at_most: int) -> None:
        self.called.add(party)
        missing = latch.arrive(party)
        if missing > at_most:
            self.violations.append(f"{missing} missing after {party}, and not {at_most} at most")


def violations(seeds: range, told: Callable[[str], object] = print) -> int:
    """Play these seeds; tell each violation with its seed, and return how many runs had one."""
    count = 0
    for seed in seeds:
        try:
            found = Run(seed).play()
        except (QuorumError, TimeoutError) as error:
            found = [repr(error)]
        count += bool(found)
        for one in found:
            told(f"seed {seed}: {one}")
    return count


if __name__ == "__main__":
    import sys

    first, _, last = sys.argv[1].partition("-")
    print(f"{violations(range(int(first), int(last)))} of the runs had a violation")
