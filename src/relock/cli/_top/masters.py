"""The masters, as ``relock top`` reads them. Nothing here writes."""

from collections.abc import Iterator

from relock import QuorumError
from relock._doctor.examine import examine_all
from relock._doctor.findings import Examination
from relock._names import find_keys
from relock.cli._nodes import Where
from relock.cli._states import State, look
from relock.cli.status import show

REPLY_SECONDS = 1.0


class Masters:
    """Reader of the masters, by a client of its own."""

    def __init__(self, where: Where) -> None:
        self._client, self._nodes, self._prefix = where.client(), where.nodes(), where.prefix

    def examine(self) -> list[Examination]:
        """Return the facts about each master; a failure is among the findings."""
        return examine_all(self._nodes, self._prefix, REPLY_SECONDS, brief=True)

    def find(self) -> Iterator[tuple[str, str, bool]]:
        """Yield the names that are in use, as `find_keys` does."""
        return find_keys(self._client._session, "*")

    def look(self, name: str, kind: str) -> State:
        """Return the state of what has this name and kind."""
        return look(self._client, name, kind)

    def details(self, name: str, kind: str) -> str:
        """Return what ``relock status`` prints, with a deadlock that is there now; or why too few masters answer."""
        try:
            return show(self._client, name, kind, as_json=False)
        except QuorumError as error:
            return f"not known: {error}"

    def close(self) -> None:
        """Close the client."""
        self._client.close()
