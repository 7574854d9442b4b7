"""`Client.check`: it tells the faults of these masters in words."""

import warnings
from collections.abc import Callable

import pytest
from support.servers import Server, free_port

from relock import Client, ConfigurationError, QuorumError, RelockWarning

RIGHTS = ("on", "nopass", "~*", "+@all")


@pytest.mark.every_server
@pytest.mark.parametrize(
    ("rights", "command"),
    [
        (("&*", "-subscribe"), "SUBSCRIBE"),
        (("resetchannels",), "SUBSCRIBE"),
        (("resetchannels", "&other:*"), "SUBSCRIBE"),
        (("&*", "-publish"), "PUBLISH"),
    ],
    ids=["subscribe", "no channel", "other channels", "publish"],
)
def test_a_user_who_hears_or_sends_no_message_is_told(
    server: Server, connect: Callable[..., Client], rights: tuple[str, ...], command: str
) -> None:
    """No call fails without PUBLISH, so no error would tell that."""
    server.cli("ACL", "SETUSER", "limited", "reset", *RIGHTS, *rights)
    try:
        client = connect(f"redis://limited:x@127.0.0.1:{server.port}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RelockWarning)  # of PUBLISH, as `test_services` checks
            (problem,) = client.check()
        assert f"{command} is refused" in problem
        assert f"127.0.0.1:{server.port}" in problem
        assert "lock:client:*" in problem
        assert client.statistics().masters[0].problems == (problem,)
        server.cli("ACL", "SETUSER", "limited", "allchannels", "+subscribe", "+publish")
        assert client.check() == ()
        assert client.statistics().masters[0].problems == ()
    finally:
        server.cli("ACL", "DELUSER", "limited")


def test_a_server_without_publish_is_told_of_once(
    start_server: Callable[..., Server], connect: Callable[..., Client]
) -> None:
    server = start_server("--rename-command", "PUBLISH", "hidden-from-relock")
    client = connect(server.url)
    with pytest.warns(RelockWarning, match="it refuses PUBLISH in scripts"):
        (problem,) = client.check()
    assert "it does not know PUBLISH" in problem
    assert client.check() == (problem,)


def test_looking_whether_one_may_subscribe_is_no_subscription_of_the_clients(client: Client, server: Server) -> None:
    """A client that only seems to listen would make a release wake no other waiter."""
    with client.lock("a"):
        assert client.check() == ()
    channels = server.cli("PUBSUB", "CHANNELS", f"*{client._session.client_id}*")
    assert channels == []


def test_a_master_that_is_away_is_told(connect: Callable[..., Client], server: Server, own_server: Server) -> None:
    gone = free_port()
    client = connect([server.url, f"redis://127.0.0.1:{gone}", own_server.url])
    (problem,) = client.check()
    assert problem.startswith(f"redis://127.0.0.1:{gone}/0")
    assert "start it" in problem
    own_server.kill()
    with pytest.raises(QuorumError):
        client.check()


def test_one_server_under_two_names_can_not_be_used(
    connect: Callable[..., Client], server: Server, own_server: Server
) -> None:
    """Two votes of one server are no majority of two."""
    client = connect([server.url, own_server.url, server.unix_url])
    with pytest.raises(ConfigurationError, match="the same server") as caught:
        client.check()
    assert caught.value.option == "nodes"
    assert str(server.port) in str(caught.value)
    assert str(own_server.port) not in str(caught.value)


def test_where_info_is_refused_no_two_masters_are_taken_for_one(
    connect: Callable[..., Client], server: Server, own_server: Server
) -> None:
    urls = []
    for one in (server, own_server):
        one.cli("ACL", "SETUSER", "blind", "reset", *RIGHTS, "&*", "-info")
        urls.append(f"redis://blind:x@127.0.0.1:{one.port}")
    try:
        with pytest.warns(RelockWarning):  # one of INFO, and one of the number
            problems = connect(urls, restart_guard=0).check()
        assert all("INFO" in problem for problem in problems)
        assert len(problems) == 2
    finally:
        server.cli("ACL", "DELUSER", "blind")
