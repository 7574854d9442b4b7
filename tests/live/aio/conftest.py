"""Fixtures of tests of tasks, in place of those of threads."""

from collections.abc import AsyncIterator

import pytest
from support.masters import Deployment
from support.tasks import Connect, connecting

from relock import AsyncClient


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Make clients, and close them at the end of the test."""
    async with connecting() as connect:
        yield connect


@pytest.fixture
async def client(connect: Connect, server: Deployment) -> AsyncClient:
    """A client of `server`."""
    return connect(server.url)
