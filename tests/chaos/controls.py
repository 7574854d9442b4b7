"""The nemesis on locks without one of the safety checks: it must find each of these locks broken."""

from attrs import evolve, frozen

from chaos.field import FieldPlan
from chaos.nemesis import Episode, run
from chaos.verdict import Finding

EXCLUSION = "intervals"  # the check that most controls fail; the sweep alone shows it
EPISODES_MAX = 20  # one or two are nearly always enough
RARE_EPISODES_MAX = 60
PLAN = FieldPlan(masters=1, seed="", processes=3, threads=1, locks=1, long=0.6, has_loops=False)
LOOPED = evolve(PLAN, processes=4, has_loops=True)
PAIRED = evolve(PLAN, has_replicas=True)
ROOMY = evolve(
    PAIRED, processes=6, locks=6, tries=0.5, ttl=2.0, guard=2.0, long=0.5
)  # few workers wait if a lock lets others in
EAGER = evolve(PLAN, tries=0.8)  # so that a worker tries while masters have forgotten, and the holder does not know yet


@frozen
class Control:
    """One safety check that is taken out, and the faults against which it guards.

    Attributes:
        shows: the check that must find something.
        is_rare: whether only about one episode in ten finds it, by chance; only the long run plays it.
    """

    plan: FieldPlan
    kinds: tuple[str, ...]
    shows: str = EXCLUSION
    reach: str | None = None
    seconds: float = 4.0
    is_rare: bool = False


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
    "no restart guard, failing back": Control(evolve(PAIRED, guard=0.0, tries=0.8), ("failing back",), seconds=10.0),
    "no restart guard, failover with lag": Control(evolve(PAIRED, guard=0.0, tries=0.8), ("failover with lag",)),
    "sockets that are what they were": Control(
        evolve(ROOMY, weakened="sockets that prove what they are"), ("failing back",), seconds=10.0, is_rare=True
    ),
    "subscriptions that stay": Control(
        evolve(PAIRED, guard=0.0, locks=2, threads=3, long=0.0, weakened="subscriptions that move"),
        ("REPLICAOF by hand", "FAILOVER"),
    ),
    "one owner for all tasks of a loop": Control(
        evolve(LOOPED, threads=3, weakened="one owner for each task"), ("loop blocked by a holder", "loop ended")
    ),
    "holds of tasks that their loop renews": Control(
        evolve(LOOPED, long=0.0, weakened="threads that renew for tasks"), ("loop blocked by a holder",), shows="kept"
    ),
    "several locks in the caller's order": Control(
        evolve(PLAN, threads=2, locks=2, long=0.0, several=1.0, weakened="names in one order"),
        ("SCRIPT FLUSH",),
        shows="deadlock",
        seconds=2.0,
    ),
    "deadlocks that nobody looks for": Control(
        evolve(PLAN, threads=2, locks=2, long=0.0, crossed=1.0, weakened="search for deadlocks"),
        ("SCRIPT FLUSH",),
        shows="ring",
        seconds=2.0,
    ),
    "permits that a quorum counts": Control(
        evolve(PLAN, masters=3, processes=4, threads=3, long=0.05, limit=2, weakened="permits that have slots"),
        ("late requests", "masters stopped"),
        shows="permits",
        is_rare=True,
    ),
    "readers that pass over a writer": Control(
        evolve(PLAN, threads=2, long=0.1, reads=0.5, weakened="readers that look at the writer"),
        ("SCRIPT FLUSH",),
        shows="readers",
        seconds=2.0,
    ),
    "a downgrade in two steps": Control(
        evolve(PLAN, threads=3, long=0.1, reads=0.3, weakened="downgrades without a gap"),
        ("SCRIPT FLUSH",),
        shows="readers",
        seconds=2.0,
    ),
    "a latch that counts arrivals": Control(
        evolve(PLAN, threads=2, long=0.0, parties=6, weakened="parties that have names"),
        ("SCRIPT FLUSH",),
        shows="latch",
        seconds=2.0,
    ),
    "log handlers on the spot": Control(
        evolve(PLAN, threads=3, locks=3, long=0.3, weakened="a thread for the log"),
        ("output that nobody reads",),
        shows="kept",
    ),
}


def run_control(name: str, seed: str) -> Finding:
    """Run episodes of this control until one shows the expected violation, or the allowed number has been run."""
    control, total = CONTROLS[name], Finding()
    for number in range(RARE_EPISODES_MAX if control.is_rare else EPISODES_MAX):
        plan = evolve(control.plan, seed=f"{seed} {name} {number}")
        total.add(run(Episode(plan, control.seconds, control.kinds, control.reach, calm=0.5)))
        if is_found(name, total):
            break
    return total


def is_found(name: str, finding: Finding) -> bool:
    """Return whether the check that must find this control broken has done so."""
    return CONTROLS[name].shows in {violation.check for violation in finding.violations}
