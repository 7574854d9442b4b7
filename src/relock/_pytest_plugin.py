"""Fixtures for pytest. It is loaded wherever relock and pytest are, so it imports nothing until a test asks for it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from relock.testing import Lab


@pytest.fixture
def relock_lab() -> Iterator["Lab"]:
    """A `relock.testing.Lab` with one virtual master."""
    from relock.testing import Lab

    lab = Lab()
    yield lab
    lab.close()
