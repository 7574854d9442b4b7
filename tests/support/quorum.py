"""Questions of several tests to masters that they start, kill and restart one by one."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import redis

from relock import Client, LockLostError, QuorumError
from support.masters import Masters
from support.processes import Worker
from support.servers import Server
from support.until import until

VOTE_SECONDS = 30.0


def key_of(name: str) -> str:
    """Return the key that keeps the hold of a lock."""
    return f"lock:{{{name}}}"


def replies(members: Sequence[Server], *words: Any) -> list[Any]:
    """Return each master's answer to one command; None for a master that does not answer."""
    answers: list[Any] = []
    for member in members:
        try:
            answers.append(member.cli(*words))
        except redis.ConnectionError:
            answers.append(None)
    return answers


def owners(masters: Masters, name: str) -> list[str | None]:
    """Return the owner of the lock on each master; None if there is none, or the master does not answer."""
    return [keys[0].decode() if keys else None for keys in replies(masters.members, "HKEYS", key_of(name))]


def is_everywhere(masters: Masters, name: str) -> bool:
    """Return whether all masters have the hold, and of the same owner."""
    found = set(owners(masters, name))
    return len(found) == 1 and None not in found


def is_nowhere(masters: Masters, name: str) -> bool:
    """Return whether no master has a hold or a waiter left."""
    keys = [key_of(name) + part for part in ("", ":queue", ":waiters")]
    return not any(replies(masters.members, "EXISTS", *keys))


def wait_for_votes(client: Client, masters: Masters, name: str) -> None:
    """Wait until every master grants to this client."""
    warm_up = f"{name}-votes"

    def all_grant() -> bool:
        with suppress(LockLostError), client.lock(warm_up, timeout=VOTE_SECONDS):  # the lease may be short
            return is_everywhere(masters, warm_up)
        return False

    until(all_grant, within=VOTE_SECONDS, what="every master has its vote")


def takes(client: Client, name: str) -> bool:
    """Return whether a try is granted; a granted lock is released at once."""
    lock = client.lock(name)
    try:
        granted = lock.acquire(blocking=False)
    except QuorumError:
        return False
    if granted:
        with suppress(LockLostError):  # a busy machine may have lost it
            lock.release()
    return granted


def takes_in(worker: Worker, name: str) -> bool:
    """Return whether a try of another process is granted; a granted lock is released at once."""
    worker.send({"do": "acquire", "id": 1, "name": name, "timeout": 0})
    said = _said(worker)
    assert said.get("error", "QuorumError") == "QuorumError", said
    if said["event"] != "granted":
        return False
    worker.send({"do": "release", "id": 1})
    assert _said(worker)["event"] == "releasing"
    _said(worker)  # released, or lost on a busy machine
    return True


def _said(worker: Worker) -> Any:
    """Return the process's answer to its last order; skip its other lines."""
    while (said := worker.receive())["id"] is None:
        pass
    return said
