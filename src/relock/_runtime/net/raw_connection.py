"""What relock uses of a connection of redis-py."""

from collections.abc import Sequence
from typing import Any, Protocol


class RawConnection(Protocol):
    """What relock uses of a connection of redis-py, in whichever version: nothing that resends or reconnects."""

    def connect(self) -> None:
        """Opens the socket and authenticates."""

    def disconnect(self) -> None:
        """Closes the socket."""

    def pack_commands(self, commands: Sequence[Sequence[str | int | bytes]]) -> list[bytes]:
        """Commands as bytes for the wire."""

    def send_packed_command(self, command: Sequence[bytes], check_health: bool = True) -> None:
        """Sends what `pack_commands` made."""

    def send_command(self, *words: str | int | bytes, check_health: bool = True) -> None:
        """Packs and sends one command."""

    def read_response(self, *, disconnect_on_error: bool = True) -> Any:
        """Reads one reply; raises it if it is an error."""

    def can_read(self, timeout: float) -> bool:
        """Whether something is there to be read, within `timeout` seconds."""
