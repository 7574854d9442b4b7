"""What the benchmark calls those that are measured on an event loop."""

LOOP_FLOOR = "relock's scripts, bare on a loop"
RELOCK_TASKS = "relock, tasks"
RELOCK_THREADS = "relock, threads"
REDIS_PY_TASKS = "redis-py asyncio Lock"
LOOP_HOP = "one hop, bare on a loop"
THREADS_HOP = "one hop, bare in threads"
TASKS = "tasks"  # a kind of workers


def on_uvloop(name: str) -> str:
    """The same on uvloop."""
    return f"{name} (uvloop)"
