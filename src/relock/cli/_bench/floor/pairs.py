"""The floor of an uncontended pair: the two smallest scripts, over bare sockets."""

import select
from collections.abc import Callable, Sequence

from attrs import frozen

from relock._core.quorum import quorum_of
from relock.cli._bench.floor.sockets import FOLDER, BareSocket, packed

Pair = Callable[[], None]
LEASE_MS = 10_000
OWNER = "me"


@frozen
class Asked:
    """A bare socket to one master, with the two scripts of a pair as bytes."""

    bare: BareSocket
    take: bytes
    give: bytes


def with_small_scripts(bare: BareSocket, key: str | bytes) -> Asked:
    """Load the floor's two scripts; return the socket with them."""
    take, give = (bare.load((FOLDER / name).read_bytes()) for name in ("take.lua", "give.lua"))
    return Asked(bare, packed("EVALSHA", take, 1, key, OWNER, LEASE_MS), packed("EVALSHA", give, 1, key, OWNER))


def pair_of(masters: Sequence[Asked]) -> Pair:
    """Return a function that does a pair, at the quorum of several masters."""
    return _pair_of_one(masters[0]) if len(masters) == 1 else _pair_at_the_quorum(masters)


def _pair_of_one(asked: Asked) -> Pair:
    def pair() -> None:
        asked.bare.call(asked.take)
        asked.bare.call(asked.give)

    return pair


def _pair_at_the_quorum(masters: Sequence[Asked]) -> Pair:
    """Return a function that does a pair: it writes to all masters, and reads whichever is ready up to a quorum."""
    by_fileno = {master.bare.fileno(): master for master in masters}
    poller = select.poll()
    for fileno in by_fileno:
        poller.register(fileno, select.POLLIN)

    def until_quorum() -> None:
        answered = 0
        while answered < quorum_of(len(by_fileno)):
            answered += sum(by_fileno[fileno].bare.has_answered() for fileno, _ in poller.poll())

    def pair() -> None:
        for master in masters:
            master.bare.send(master.take)
        until_quorum()
        for master in masters:
            master.bare.send(master.give)
        until_quorum()

    return pair
