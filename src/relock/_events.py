"""What relock tells: the loss of a hold, and the events of a client. Frozen values, in seconds."""

from attrs import frozen


@frozen
class Loss:
    """A hold that ended before its owner released it.

    Attributes:
        lock: the name of the lock.
        owner: ``<client>:<uuid>`` of the hold.
        token: its fencing token.
        hold_count: how many levels its owner had when it was lost.
        reason: why, in words.
        held_for: for how many seconds it was held.
    """

    lock: str
    owner: str
    token: int
    hold_count: int
    reason: str
    held_for: float


@frozen
class Event:
    """Something that happened in a client. ``lock`` is the lock's name, or None where it is about a master."""

    lock: str | None


@frozen
class Granted(Event):
    """An outermost acquire got the lock after `waited` seconds, with the fencing token `token`."""

    waited: float
    token: int


@frozen
class NotGranted(Event):
    """An acquire gave up after `waited` seconds because somebody else has the lock."""

    waited: float


@frozen
class Released(Event):
    """A hold of `held_for` seconds was released."""

    held_for: float


@frozen
class RenewalFailing(Event):
    """A renewal found no quorum; unless a later one does, the hold is lost in `seconds_left`."""

    seconds_left: float


@frozen
class LoopStalled(Event):
    """An event loop whose tasks hold locks has not turned for `seconds` at least; told once for each time.

    Its holds are renewed on, unless the client has a ``stall_limit`` and that is over. An ``on_event`` of an
    `AsyncClient` hears of it when the loop turns again; the log, and that of a `Client`, at once.
    """

    seconds: float


@frozen
class Lost(Event):
    """A hold was lost, for `reason`."""

    reason: str


@frozen
class ReleaseUnconfirmed(Event):
    """Fewer than a quorum confirmed a release; at the latest in `seconds_left` the lease runs out by itself."""

    seconds_left: float


@frozen
class MasterDown(Event):
    """A master does not answer, and why."""

    master: str
    why: str


@frozen
class MasterBack(Event):
    """A master answers again."""

    master: str


@frozen
class MasterWithoutVote(Event):
    """A master may have forgotten leases and has no vote for `seconds_left`, and why."""

    master: str
    seconds_left: float
    why: str
