"""Operators of a run: they end holds and permits by force, and set other limits of a semaphore."""

import contextlib
from functools import partial

from relock import RelockError
from sim.beliefs import Belief
from sim.cast import Cast
from sim.permits import PermitReferee
from sim.plan import LOCK, OVERRIDE
from sim.referee import Referee

OVERRIDE_MAX = 6  # the largest limit that an operator sets
OVERRIDE_SECONDS = (0.0, 0.5, 2.0, 5.0)


class Operators:
    """The operators of one run, each in a process of its own."""

    def __init__(self, cast: Cast, referee: Referee) -> None:
        self._cast = cast
        self._referee = referee

    def force_release(self) -> None:
        """Let an operator end any hold, from a process of its own."""
        if isinstance(self._referee, PermitReferee):
            self._force_permit(self._referee)
            return
        world, plan = self._cast.world, self._cast.plan
        name = world.random.choice(plan.several.names) if plan.several else LOCK
        referee = self._referee.family[name]
        process, client = self._cast.make_client("operator")

        found = referee.forced()

        def over() -> None:
            referee.operator_done()
            if plan.is_calm and done:
                world.after(plan.longest / 2, partial(referee.check_forced, found))

        def force() -> None:
            with contextlib.suppress(RelockError):
                done.append(client.force_release(name))
            client.close()
            world.after(2 * plan.node_timeout, over)  # requests that are still under way are void by then

        done: list[bool] = []
        referee.operators += 1
        process.start(force, "operator")
        self._referee.struck("operator", "force release", 0.0)

    def _force_permit(self, referee: PermitReferee) -> None:
        """Let an operator end the permits of one holder, from a process of its own."""
        world, plan = self._cast.world, self._cast.plan
        process, client = self._cast.make_client("operator")
        found: list[Belief] = []

        def over() -> None:
            referee.operator_done()
            if plan.is_calm and found:
                world.after(plan.longest / 2, partial(referee.check_forced, found))

        def force() -> None:
            with contextlib.suppress(RelockError):
                semaphore = client.semaphore(referee.keys.name, 1)
                holders = semaphore.info().holders
                if holders:
                    owner = world.random.choice(holders).owner
                    renewed = referee.forced_out(owner.encode())
                    if semaphore.force_release(owner):
                        found.extend(renewed)
            client.close()
            world.after(2 * plan.node_timeout, over)  # requests that are still under way are void by then

        referee.operators += 1
        process.start(force, "operator")
        self._referee.struck("operator", "force release", 0.0)

    def override(self) -> None:
        """Let an operator set another limit of the semaphore for a while, from a process of its own."""
        referee, random = self._referee, self._cast.world.random
        assert isinstance(referee, PermitReferee)
        process, client = self._cast.make_client("operator")
        limit, seconds = random.randint(0, OVERRIDE_MAX), random.choice(OVERRIDE_SECONDS)

        def override() -> None:
            one = referee.limits.begins(limit, seconds)
            with contextlib.suppress(RelockError):
                client.semaphore(referee.keys.name, 1).override(limit, seconds)
                referee.limits.is_set(one)
            client.close()

        process.start(override, "operator")
        self._referee.struck("operator", f"{OVERRIDE} by {limit}", seconds)
