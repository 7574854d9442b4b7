"""Two holds of one owner on one lock: as a writer and as a reader.

Both are ordinary holds, each with its own levels, lease and renewal. An owner that has the lock as a writer may take it
as a reader as well, at once: the reader's name says which writer it belongs to, and the masters let it in beside that
one. When the writer's hold ends first, the reader's is left on each master, and other readers get in: that is the whole
downgrade, and no moment is without a hold.

The other way round is an error. A reader that waits for all readers to end waits for itself.
"""

from relock._core.call_record import CallFlow
from relock._core.flows.attempt import write_token
from relock._core.hold import FOREVER, Hold
from relock._core.host import Host
from relock._core.lock_spec import LockSpec
from relock._core.quorum import NoQuorum
from relock._errors import ConfigurationError, UpgradeError
from relock._owner import Owner, ReadKey, stem_of
from relock._scripts import load

ALONE: tuple[bytes, NoQuorum | None] = b"", None


def beside_own(host: Host, spec: LockSpec, who: Owner) -> CallFlow[tuple[bytes, NoQuorum | None]]:
    """Return how a reader's name ends that has the lock as a writer already: it says which writer. Else return nothing.

    The token of a reader is above those of earlier writers, also of its own hold. If the masters gave that hold
    different tokens, a quorum must know its token first; else return the outcome as well.

    Raises:
        UpgradeError: the caller asks as a writer, and has the lock as a reader.
        LockLostError: the caller's other hold was lost.
        ConfigurationError: the caller asks as a reader, and that hold is to be followed by a rest.
    """
    name, holds = spec.keys.name, host.holds
    if spec.is_shared:
        holds.had_readers = True
    hold = holds.get((name, who.key.owner if isinstance(who.key, ReadKey) else ReadKey(who.key)))
    if hold is None or hold.count == 0:
        return ALONE
    host.check_valid(hold)
    if not spec.is_shared:
        raise UpgradeError(
            f"the caller has {name!r} as a reader, and would wait for itself as a writer: release the read lock first, "
            "or take the write lock first and the read lock inside",
            lock=name,
        )
    if hold.at_least:
        raise rest_error(name)
    # The script for readers knows their leases: the writer's lease, if it is longer, ends with the writer.
    hold.end_with(load("read_release"))
    failed = None
    if not hold.settled and spec.quorum > 1:
        failed = yield from write_token(spec, hold.token, hold.deadline, host.clock, FOREVER)
    return stem_of(hold.owner), failed


def has_reader(host: Host, hold: Hold) -> bool:
    """Return whether the owner of `hold`, a writer, has the lock as a reader as well."""
    reader = host.holds.get((hold.keys.name, ReadKey(hold.key)))
    return reader is not None and reader.count > 0


def check_rest(host: Host, hold: Hold) -> None:
    """Refuse a rest after `hold` if its owner has the lock as a reader as well, and would keep it as one.

    Raises:
        ConfigurationError: it has.
    """
    if has_reader(host, hold):
        raise rest_error(hold.keys.name)


def rest_error(name: str) -> ConfigurationError:
    """Return the error for an owner that has the lock `name` with ``at_least``, and as a reader."""
    return ConfigurationError(
        f"{name!r} with at_least= can't be read by its owner as well: after the release of the lock, the reader would "
        "let other readers in; make the lock without at_least=",
        lock=name,
        option="at_least",
    )
