"""Messages that one client sends to another one, by the masters."""

from collections.abc import Generator, Iterable, Sequence
from typing import Any

from relock._core.effects import Answer, Ask, Clock, Effect, Failure
from relock._core.lock_spec import LockSpec
from relock._keys import lock_keys
from relock._owner import client_name
from relock._scripts import Call, load


def message(prefix: str, lock: str, client: bytes, *words: bytes) -> Call:
    """Return the call that brings a message about this `lock` to a client."""
    return load("notify").call(lock_keys(prefix, lock), client=client, message=b" ".join(words))


def is_told(answers: Sequence[Answer]) -> bool:
    """Return whether a master has sent the messages."""
    return any(not isinstance(answer[-1], Failure) for answer in answers)


def tell_ended(spec: LockSpec, owners: Iterable[str], clock: Clock) -> Generator[Effect, Any, None]:
    """Tell the clients of `owners` that their holds have ended by force; a client that does not listen is not told."""
    prefix, name, calls = spec.keys.prefix, spec.keys.name, []
    for owner in map(str.encode, owners):
        client = client_name(owner)
        calls.append(message(prefix, name, client, b"ended", owner[len(client) + 1 :], name.encode()))
    if calls:
        yield Ask(tuple(calls), clock() + spec.node_timeout, is_told)
