"""Numbers of permits that a caller may name."""

import pytest

from relock import Client


@pytest.mark.parametrize("permits", [1.0, True, "1", None])
def test_a_number_of_permits_is_an_int(permits: object) -> None:
    with Client("redis://127.0.0.1:1") as client, pytest.raises(TypeError, match="permits must be an int"):
        client.semaphore("a", 4).acquire(permits, blocking=False)  # type: ignore[arg-type]
