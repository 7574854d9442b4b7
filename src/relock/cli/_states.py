"""State of a lock, a semaphore or a latch, as `ls --long` and `watch` show it."""

import math
from collections.abc import Callable
from typing import Any

from relock import Client, LatchInfo, LockInfo, SemaphoreInfo
from relock._keys import LATCH, LOCK, SEMAPHORE
from relock._options import LIMIT_MAX
from relock._owner import described, parts_of
from relock.cli._output import printable

State = LockInfo | SemaphoreInfo | LatchInfo
_PARTS = ("host", "process", "client", "owner")  # of an owner's name


def look(client: Client, name: str, kind: str) -> State:
    """Return the state of what has this name and kind."""
    looks: dict[str, Callable[[], State]] = {
        LOCK: lambda: client.info(name),
        SEMAPHORE: lambda: client.semaphore(name, LIMIT_MAX).info(),
        LATCH: lambda: client.latch(name, LIMIT_MAX).info(),
    }
    return looks[kind]()


def facts_of(state: State) -> dict[str, Any]:
    """Return the state for JSON: `held_for_seconds` and the like are None where the masters do not tell them."""
    if isinstance(state, LatchInfo):
        return {"name": state.name, "kind": state.kind, "arrived": list(state.arrived)}
    held_for, left, of_lock = None, max((holder.ttl for holder in state.holders), default=None), {}
    if isinstance(state, LockInfo):
        held_for, left = state.held_for, state.ttl if state.held and math.isfinite(state.ttl) else None
        of_lock = {"reading": bool(state.readers), "resting": state.resting, "note": state.note}
    return {
        **common_facts(state),
        "holders": [holder.owner for holder in state.holders],
        "held_for_seconds": held_for,
        "lease_left_seconds": left,
        "first_waits_seconds": state.waits[0] if state.waits else None,
        **of_lock,
    }


def common_facts(state: LockInfo | SemaphoreInfo) -> dict[str, Any]:
    """Return for JSON what a lock and a semaphore share; an owner is None whose name relock has not made."""
    names = [*(holder.owner for holder in state.holders), *state.queue]
    parts = ((name, parts_of(name)) for name in names)
    owners = {name: found and dict(zip(_PARTS, found, strict=True)) for name, found in parts}
    return {"name": state.name, "kind": state.kind, "queue": list(state.queue), "owners": owners}


def in_words(state: State) -> str:
    """Return the holder, what it does, and its note, or how many more; of a latch, how many parties are missing."""
    if isinstance(state, LatchInfo):
        missing = f"{state.missing} of {state.parties} are missing" if state.arrived else "nobody has arrived"
        return "open" if state.missing == 0 else f"closed: {missing}"
    owners = [printable(described(holder.owner)) for holder in state.holders]
    if isinstance(state, LockInfo) and state.resting:
        return "nobody: it rests"
    if not owners:
        return "another library" if isinstance(state, LockInfo) and state.held else "nobody"
    reads = isinstance(state, LockInfo) and state.readers
    if len(owners) > 1:
        return f"{owners[0]} and {len(owners) - 1} more{' read' if reads else ''}"
    who = f"{owners[0]} reads" if reads else owners[0]
    return f"{who}: {printable(state.note)}" if isinstance(state, LockInfo) and state.note else who
