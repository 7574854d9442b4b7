"""The names of contestants and of kinds of workers, in tables and in records of runs."""

from relock.cli._bench.words import ONE_HOP

FLOOR, AFRESH = "redis-py connections", "relock, a new lock each time"
#: Locks that `lock_all` takes as one, by their number.
AT_ONCE = {number: f"relock, {number} at once" for number in (1, 2, 8)}
READER = "relock, a read lock"
#: Semaphores of which one permit is taken, by their limit.
PERMITS = {limit: f"relock, a permit of {limit}" for limit in (1, 10)}
#: Semaphores of which a permit is handed over, by their limit.
PERMITS_HOPS = {limit: f"relock, one hop, a permit of {limit}" for limit in (1, 4)}
OWN_SCRIPTS = "relock's scripts, bare"
TWO_HOPS = "two hops, bare"
LOOP_FLOOR, LOOP_HOP = "relock's scripts, bare on a loop", "one hop, bare on a loop"
THREADS_HOP = "one hop, bare in threads"
RELOCK_TASKS, RELOCK_THREADS = "relock, tasks", "relock, threads"
REDIS_PY_TASKS = "redis-py asyncio Lock"
#: Kinds of workers. A worker that is alone makes uncontended pairs in a thread.
LONE, THREADS, PROCESSES, TASKS = "alone", "threads", "processes", "tasks"
#: Processes of tasks, by the object that the tasks wait for.
KINDS = {"nobody": "nothing: a client alone", "event": "an Event", "lock": "one lock", "locks": "20 locks"}
EVENT = "an Event"  # which threads wait for, so that others are compared with these
READERS = "one read lock"


def on_uvloop(name: str) -> str:
    """Return the name of the same contestant on uvloop."""
    return f"{name} (uvloop)"


#: The floors of hand-offs, by the kind of workers: others are multiples of these.
FLOORS = {THREADS: ONE_HOP, PROCESSES: ONE_HOP, TASKS: LOOP_HOP}


def floor_for(name: str) -> str:
    """Return the floor on the loop of this contestant; threads have none, and are compared with asyncio's floor."""
    floor = on_uvloop(LOOP_FLOOR)
    return floor if name in (floor, on_uvloop(RELOCK_TASKS)) else LOOP_FLOOR


def is_floor(contestant: str) -> bool:
    """Return True for bare sockets that hand a lock over."""
    return contestant in (ONE_HOP, TWO_HOPS, LOOP_HOP, THREADS_HOP)


def is_peer(contestant: str) -> bool:
    """Return True for a lock that is neither a floor nor relock."""
    return not is_floor(contestant) and not contestant.startswith("relock")
