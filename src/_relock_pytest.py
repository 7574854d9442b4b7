"""Fixtures for pytest. It is loaded in every test run where relock is installed, and must cost none of them anything.

So it imports nothing of relock until a test asks for it, and is no module of the package: importing one imports the
package first.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from relock.testing import Lab, LocalServer, OrderWatch
    from relock.testing._order_graph import OrderGraph

graphs_key = pytest.StashKey[list["OrderGraph"]]()  # what the tests of this run have seen


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


@pytest.fixture
def relock_order(pytestconfig: pytest.Config) -> Iterator["OrderWatch"]:
    """A watch of the order in which locks are taken, a `relock.testing.OrderWatch`; at its end the test may fail.

    The test fails if it took locks in orders that together make a cycle.
    """
    from relock.testing import OrderError, watch_order

    found = ""
    try:
        with watch_order() as watch:
            yield watch
    except OrderError as error:
        found = f"relock_order: {error}"
    pytestconfig.stash.setdefault(graphs_key, []).append(watch.graph)
    if found:
        pytest.fail(found, pytrace=False)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that keeps what `relock_order` has seen."""
    text = "write the orders that all tests with the fixture relock_order have seen, for `relock order merge`"
    parser.getgroup("relock").addoption("--relock-order", metavar="FILE", help=text)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the orders of all tests; a worker of pytest-xdist hands them to the process that has started it."""
    config = session.config
    if not config.getoption("relock_order"):
        return
    from relock.testing._order_graph import as_document, merge, write_graph

    graphs = config.stash.setdefault(graphs_key, [])
    graph = merge(graphs)
    if hasattr(config, "workeroutput"):
        config.workeroutput["relock_order"] = as_document(graph)
    else:
        write_graph(graph, config.getoption("relock_order"))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Keep the orders that a worker of pytest-xdist hands over at its end; one that was killed hands over nothing."""
    document = getattr(node, "workeroutput", {}).get("relock_order")
    if document is not None:
        from relock.testing._order_graph import from_document

        node.config.stash.setdefault(graphs_key, []).append(from_document(document))
