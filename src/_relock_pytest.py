"""Fixtures for pytest. It is loaded in every test run where relock is installed, and must cost none of them anything.

So it imports nothing of relock until a test asks for it, and is no module of the package: importing one imports the
package first.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from relock.testing import Lab, LocalServer


@pytest.fixture
def relock_lab() -> Iterator["Lab"]:
    """A `relock.testing.Lab` with one virtual master. It needs the extra ``testing``, and without it the test fails."""
    try:
        from relock.testing import Lab
    except ModuleNotFoundError as error:
        text = f"relock_lab: {error}: `pip install redis-relock[testing]` brings what it needs"
        pytest.fail(text, pytrace=False)
    lab = Lab()
    yield lab
    lab.close()


@pytest.fixture
def relock_server() -> Iterator["LocalServer"]:
    """A real server of the test's own, empty: a `relock.testing.LocalServer`. It ends with the test.

    Where there is none, the test fails: a skip would hide that what was asked for is not tested.
    """
    from relock._servers.server import NoServerError, local_server

    with ExitStack() as stack:
        try:
            server = stack.enter_context(local_server())
        except NoServerError as error:
            pytest.fail(f"relock_server: {error}", pytrace=False)
        yield server
