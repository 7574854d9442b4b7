"""Fixtures of several unit tests."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from relock.testing import Lab


@pytest.fixture
def lab() -> Iterator["Lab"]:
    """A lab in virtual time, which needs hiredis; hiredis may be missing on purpose."""
    pytest.importorskip("hiredis")
    from relock.testing import Lab

    with Lab() as made:
        yield made
