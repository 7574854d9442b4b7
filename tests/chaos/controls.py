"""The nemesis on the lock with one guard taken out: it has to find each of them."""

from attrs import evolve, frozen

from chaos.field import Plan
from chaos.nemesis import Episode, run
from chaos.verdict import Finding

BROKEN = "intervals"  # what each of them breaks is exclusion, and the sweep alone shows that
EPISODES_MAX = 12  # one or two are nearly always enough
PLAN = Plan(masters=1, seed="", processes=3, threads=1, locks=1, long=0.6)
EAGER = evolve(PLAN, tries=0.8)  # somebody looks while masters have forgotten, and the holder does not know yet


@frozen
class Control:
    """One guard that is taken out, and the faults that it is there for."""

    plan: Plan
    kinds: tuple[str, ...]
    reach: str | None = None
    seconds: float = 4.0


CONTROLS = {
    "no restart guard, one master": Control(evolve(EAGER, guard=0.0), ("masters killed, back empty", "FLUSHALL")),
    "no restart guard, five masters": Control(
        evolve(EAGER, masters=5, guard=0.0), ("masters killed, back empty", "FLUSHALL"), reach="majority"
    ),
    "no validity check": Control(evolve(PLAN, weakened="validity"), ("holder stopped for long",)),
    "sent again on a new connection": Control(
        evolve(EAGER, weakened="one attempt"), ("masters killed, back on old data",)
    ),
    "one name for all holds of a thread": Control(
        evolve(PLAN, processes=2, long=0.5, weakened="one name for each hold"), ("late releases",)
    ),
}


def run_control(name: str, seed: str) -> Finding:
    """Episodes of this control until one shows that there was no exclusion, or all that it may take."""
    control, total = CONTROLS[name], Finding()
    for number in range(EPISODES_MAX):
        plan = evolve(control.plan, seed=f"{seed} {name} {number}")
        total.add(run(Episode(plan, control.seconds, control.kinds, control.reach, calm=0.5)))
        if BROKEN in {violation.check for violation in total.violations}:
            break
    return total
