"""Common part of the latches for threads and for tasks: what is decided without I/O."""

from relock._core.flows import latch as latch_flows
from relock._core.flows.inspect import MasterReplies
from relock._core.flows.latch import LatchInfo, LatchSpec
from relock._core.host import WaiterRegister
from relock._core.quorum import NoQuorum, quorum_of
from relock._errors import ConfigurationError
from relock._holding import HasSession, quorum_error, too_few_answered
from relock._keys import latch_keys
from relock._options import TTL_SECONDS_MAX, TTL_SECONDS_MIN, ClientOptions, check_limit, check_name, check_seconds


def latch_spec(options: ClientOptions, masters: tuple[str, ...], name: str, parties: int, ttl: float) -> LatchSpec:
    """Return what the requests for a latch have in common; `options` are those of the client."""
    keys = latch_keys(options.prefix, check_name(name))
    check_limit(parties, "parties")
    check_seconds("ttl", ttl, TTL_SECONDS_MIN, TTL_SECONDS_MAX, "between 0.05 seconds and 10 years")
    return LatchSpec(keys, masters, options.node_timeout_for(options.ttl), options.patience, parties, ttl)


class LatchHandle:
    """Latch, as its callers see it: options and errors; no I/O.

    Attributes:
        name: the name of the latch.
        parties: how many parties must arrive.
    """

    __slots__ = ("__weakref__", "_client", "_spec", "name", "parties")

    name: str
    parties: int

    def __init__(self, client: HasSession, spec: LatchSpec) -> None:
        self._client = client
        self._spec = spec
        self.name = spec.keys.name
        self.parties = spec.parties

    def _party(self, party: str | None, register: WaiterRegister) -> bytes:
        """Return the name under which a party arrives: a new one if it has none."""
        if party is None:
            return next(register.names)
        if not isinstance(party, str):
            raise TypeError(f"party must be a str, not {type(party).__name__}: {party!r}")
        if not party:
            raise ConfigurationError("party='': a party has a name, or none at all", option="party")
        try:
            return party.encode()
        except UnicodeEncodeError:
            raise ConfigurationError(f"party={party!r}: it has no UTF-8 form", option="party") from None

    def _missing(self, outcome: int | NoQuorum) -> int:
        """Return how many parties are missing; raise `QuorumError` if too few masters answered."""
        if isinstance(outcome, NoQuorum):
            raise quorum_error(self.name, outcome.failures, quorum_of(len(self._spec.masters)), outcome.answered)
        return outcome

    def _state(self, replies: MasterReplies) -> LatchInfo:
        """Return the state by `replies` to a look; raise `QuorumError` if they are too few."""
        info = latch_flows.agree(self._spec, replies)
        if info is None:
            raise too_few_answered(self.name, replies, quorum_of(len(replies)))
        return info

    def __repr__(self) -> str:
        """Show local state only: no I/O, and nothing secret."""
        kind = f"{type(self).__module__}.{type(self).__qualname__}"
        return f"<{kind} object name={self.name!r} parties={self.parties} at {id(self):#x}>"
