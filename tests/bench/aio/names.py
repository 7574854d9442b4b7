"""What the benchmark calls those that are measured on an event loop."""

LOOP_FLOOR = "relock's scripts, bare on a loop"
RELOCK_TASKS = "relock, tasks"
RELOCK_THREADS = "relock, threads"
REDIS_PY_TASKS = "redis-py asyncio Lock"
LOOP_HOP = "one hop, bare on a loop"
THREADS_HOP = "one hop, bare in threads"
TASKS = "tasks"  # a kind of workers
#: What tasks wait for that are watched.
KINDS = {"nobody": "nothing: a client alone", "event": "an Event", "lock": "one lock", "locks": "20 locks"}
OF_LOCKS = ("lock", "locks")


def on_uvloop(name: str) -> str:
    """The same on uvloop."""
    return f"{name} (uvloop)"
