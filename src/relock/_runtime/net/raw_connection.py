"""Connections of redis-py, as far as relock uses them."""

from collections.abc import Sequence
from typing import Any, Protocol


class RawConnection(Protocol):
    """Raw connection: what any version of redis-py offers, and relock uses; nothing here resends or reconnects."""

    def connect(self) -> None:
        """Open the socket and authenticate."""

    def disconnect(self) -> None:
        """Close the socket."""

    def pack_commands(self, commands: Sequence[Sequence[str | int | bytes]]) -> list[bytes]:
        """Return commands as bytes for the wire."""

    def send_packed_command(self, command: Sequence[bytes], check_health: bool = True) -> None:
        """Send what `pack_commands` made."""

    def send_command(self, *words: str | int | bytes, check_health: bool = True) -> None:
        """Pack and send one command."""

    def read_response(self, *, disconnect_on_error: bool = True) -> Any:
        """Read one reply and return it; raise it if it is an error."""

    def can_read(self, timeout: float) -> bool:
        """Return whether something can be read within `timeout` seconds."""
