"""Entries of `nodes`: one per independent master; relock judges them before it sends anything."""

import importlib
import ssl
import subprocess
import sys
import warnings
from typing import Any

import fakeredis
import pytest
import redis
import redis.asyncio
import valkey
import valkey.asyncio
import valkey.sentinel
from redis.credentials import CredentialProvider
from redis.sentinel import Sentinel

from relock import AsyncClient, Client, ConfigurationError, RelockWarning
from relock._runtime.net.parse import parse_nodes

SECRET = "hush"


def addresses(*nodes: Any) -> list[str]:
    return [node.address for node in parse_nodes(list(nodes))]


# Several masters ------------------------------------------------------------------------------------------------------


def test_each_entry_is_a_master_in_the_order_given() -> None:
    mixed = ["redis://a", "rediss://b:7000/2", "unix:///run/c.sock", redis.Redis(host="d", port=1)]
    wanted = ["redis://a:6379/0", "rediss://b:7000/2", "unix:///run/c.sock/0", "redis://d:1/0"]
    assert addresses(*mixed, "redis://[::1]:2") == [*wanted, "redis://[::1]:2/0"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("redis://a", "redis://a:6379/0"),
        ("redis://a:1", "redis://A:1"),
        ("redis://a.:1", "redis://a:1"),
        ("redis://a:1/0", "redis://a:1/5"),  # another database of the same server
        ("redis://a:1", "rediss://a:1"),
        (f"redis://:{SECRET}@a:1", "redis://a:1"),
        ("redis://[::1]:1", "redis://[0:0:0:0:0:0:0:1]:1"),
        ("unix:///run/c.sock", "unix:///run/./c.sock?db=1"),
        ("redis://a:1", redis.Redis(host="a", port=1, password=SECRET)),
        ("redis://a:1", valkey.Valkey(host="a", port=1, password=SECRET)),
        ("valkey://a:1", "rediss://a:1"),
        ("redis+sentinel://a,b/one", "redis+sentinel://b:26379/one"),
    ],
)
def test_the_same_address_twice_is_refused(one: Any, other: Any) -> None:
    with pytest.raises(ConfigurationError, match="twice") as caught:
        Client([one, "redis://z:9", other])
    assert caught.value.option == "nodes"
    assert "1 and 3" in str(caught.value)
    assert SECRET not in str(caught.value)


def test_two_services_of_the_same_sentinels_are_two_masters() -> None:
    assert len(addresses("redis+sentinel://a,b/one", "redis+sentinel://a,b/two")) == 2


@pytest.mark.parametrize(("count", "says"), [(2, "no failure"), (4, "1 failure, like 3"), (6, "2 failures, like 5")])
def test_an_even_number_of_masters_is_warned_of_once(count: int, says: str) -> None:
    nodes = [f"redis://host-{i}" for i in range(count)]
    with pytest.warns(RelockWarning, match=says) as caught:
        client = Client(nodes)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        client.lock("a")


@pytest.mark.parametrize("count", [1, 3, 5])
def test_an_odd_number_of_masters_is_not(count: int) -> None:
    assert repr(Client([f"redis://host-{i}" for i in range(count)])).count("redis://") == count


# Options in a URL -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{SECRET}@h:1/0?foo=1",
        f"redis://h:1/0?foo={SECRET}",
        f"redis://h:1/0?password={SECRET}&foo=1",
        f"unix://:{SECRET}@/run/a.sock?foo=1",
        f"redis+sentinel://:{SECRET}@h:1/mymaster?foo=1",
    ],
)
def test_an_unknown_option_in_a_url_is_named_at_once(url: str) -> None:
    with pytest.raises(ConfigurationError, match="'foo'") as caught:
        Client(url)
    assert caught.value.option == "nodes"
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{SECRET}@h?port=x",
        f"rediss://:{SECRET}@h:1/0?ssl_cert_reqs=x",
        f"redis://:{SECRET}@h:1/0?max_connections=x",
        f"redis://:{SECRET}@h:1/x",
    ],
)
def test_a_bad_value_in_a_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Client(url)
    assert caught.value.option == "nodes"
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        *("redis://:hu?shh=x@h:1/0", "redis://:hu?shh@h:1/0", "redis://me:hu?shh=x:y@h"),
        *("redis://:12#shh@h", "redis://:12?shh@h", "redis://:12/shh@h", "redis://:12?shh=1@h"),
    ],
)
def test_a_password_that_looks_like_an_option_is_not_shown(url: str) -> None:
    with pytest.raises(ConfigurationError, match="percent-encoded") as caught:
        Client(url)
    assert "shh" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (valkey.asyncio.Valkey(), "valkey.asyncio.client.Valkey"),
        (valkey.ConnectionPool(), "valkey.Valkey.* not valkey.connection.ConnectionPool$"),
        ({"redis://a", "redis://b"}, "not set$"),
        (None, "not NoneType$"),
    ],
    ids=lambda value: type(value).__qualname__,
)
def test_what_is_no_node_is_named_by_its_whole_name(given: Any, named: str) -> None:
    """Several classes are called Redis, and only one of them waits for its replies."""
    with pytest.raises(TypeError, match=named):
        parse_nodes(given)


def test_a_client_of_redis_py_that_can_not_connect_is_refused_at_once() -> None:
    given = redis.Redis(connection_pool=redis.ConnectionPool(host="h", password=SECRET, foo=1))
    with pytest.raises(ConfigurationError, match="'foo'") as caught:
        Client(given)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "option", ["socket_timeout=5", "decode_responses=1", "retry_on_timeout=1", "ssl_cert_reqs=none"]
)
def test_options_of_redis_py_are_taken(option: str) -> None:
    assert addresses(f"rediss://h:1/0?{option}") == ["rediss://h:1/0"]


@pytest.mark.parametrize(
    ("options", "checked"), [("", True), ("?ssl_cert_reqs=none", False), ("?ssl_check_hostname=no", False)]
)
@pytest.mark.parametrize("scheme", ["rediss", "rediss+cluster"])
def test_tls_checks_the_name_of_the_host_with_every_redis_py(scheme: str, options: str, checked: bool) -> None:
    """Versions of redis-py before 6.0 did not check the name by themselves."""
    (node,) = parse_nodes(f"{scheme}://h:1{options}")
    connection: Any = node.raw_connection(1.0)
    assert connection.check_hostname is checked


# Sentinel -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis+sentinel://a/mymaster", "redis+sentinel://a:26379/mymaster"),
        ("redis+sentinel://a:1,b,[::1]:2/mymaster/3", "redis+sentinel://a:1,b:26379,[::1]:2/mymaster/3"),
        (f"redis+sentinel://me:{SECRET}@a:1,b:2/my%20master", "redis+sentinel://a:1,b:2/my master"),
        (f"redis+sentinel://a/m?sentinel_password={SECRET}&password={SECRET}", "redis+sentinel://a:26379/m"),
    ],
)
def test_a_sentinel_url_names_sentinels_and_a_service(url: str, address: str) -> None:
    (node,) = parse_nodes(url)
    assert node.address == address
    assert SECRET not in repr(node)


def test_credentials_in_a_sentinel_url_are_the_masters() -> None:
    (node,) = parse_nodes(f"redis+sentinel://me:p%40@a/m/3?sentinel_username=you&sentinel_password={SECRET}")
    connection: Any = node.raw_connection(0.5)
    assert (connection.username, connection.password, connection.db) == ("me", "p@", 3)
    assert connection.retry._retries == 0
    assert node.discovery is not None
    ((_, sentinel),) = node.discovery.sentinels
    connection = sentinel(0.5)
    assert (connection.host, connection.port, connection.db) == ("a", 26379, 0)
    assert (connection.username, connection.password) == ("you", SECRET)


@pytest.mark.parametrize(
    "url",
    [
        f"redis+sentinel://:{SECRET}@a:1",
        f"redis+sentinel://:{SECRET}@a:1/",
        f"redis+sentinel://:{SECRET}@a:1/m/x",
        f"redis+sentinel://:{SECRET}@a:1/m/1/2",
        f"redis+sentinel://:{SECRET}@/m",
        f"redis+sentinel://:{SECRET}@a:x/m",
        f"redis+sentinel://:{SECRET}@a,,b/m",
        f"redis+sentinel://:{SECRET}@a/m#b",
        f"redis+sentinel://:{SECRET}@a/m?b",
    ],
)
def test_a_sentinel_url_that_can_not_work(url: str) -> None:
    with pytest.raises(ConfigurationError, match="mymaster") as caught:
        Client(url)
    assert SECRET not in str(caught.value)


made_by: Any = Sentinel  # redis-py's has no types
made_for_tasks_by: Any = redis.asyncio.sentinel.Sentinel


@pytest.mark.parametrize("is_pool", [False, True], ids=["a client", "its pool"])
def test_a_client_that_sentinel_made_is_taken_with_its_settings(is_pool: bool) -> None:
    manager = made_by([("a", 1), ("b", 2)], sentinel_kwargs={"password": SECRET}, min_other_sentinels=1)
    given = manager.master_for("mymaster", db=2, username="me", password=SECRET, decode_responses=True)
    (node,) = parse_nodes(given.connection_pool if is_pool else given)
    assert node.address == "redis+sentinel://a:1,b:2/mymaster/2"
    connection: Any = node.raw_connection(0.5)
    assert (connection.username, connection.password, connection.db) == ("me", SECRET, 2)
    assert connection.encoder.decode_responses is False
    assert connection.retry._retries == 0
    assert node.discovery is not None
    assert node.discovery.min_other_sentinels == 1
    assert [address for address, _ in node.discovery.sentinels] == ["a:1", "b:2"]


def test_a_client_of_replicas_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="master_for") as caught:
        Client(made_by([("a", 1)]).slave_for("mymaster"))
    assert caught.value.option == "nodes"


@pytest.mark.parametrize("kind", [made_by, made_for_tasks_by, valkey.sentinel.Sentinel], ids=lambda one: one.__module__)
@pytest.mark.parametrize("of", [Client, AsyncClient])
def test_sentinels_without_a_service_are_refused_with_what_to_write(kind: Any, of: Any) -> None:
    with pytest.raises(TypeError, match=rf'{kind.__module__}\.Sentinel .* sentinel\.master_for\("mymaster"\)'):
        of(kind([("a", 1)]))


# valkey-py, and objects that only look like servers -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("valkey://a", "redis://a:6379/0"),
        (f"valkey://me:{SECRET}@a:1/2?socket_keepalive=1", "redis://a:1/2"),
        (f"valkeys://:{SECRET}@a:1", "rediss://a:1/0"),
    ],
)
def test_the_schemes_of_valkey_are_those_of_redis(url: str, address: str) -> None:
    assert addresses(url) == [address]


@pytest.mark.parametrize("url", [f"valkey://:{SECRET}@a:x", f"valkeys://:{SECRET}@a/0?foo", f"valkey://:{SECRET}#b@a"])
def test_a_url_of_valkey_that_can_not_work(url: str) -> None:
    with pytest.raises(ConfigurationError, match="valkey") as caught:
        Client(url)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "address", "kind"),
    [
        (
            redis.asyncio.Redis(host="a", port=1, db=3, password=SECRET, username="me"),
            "redis://a:1/3",
            redis.Connection,
        ),
        (redis.asyncio.Redis.from_url(f"rediss://me:{SECRET}@a:1/3"), "rediss://a:1/3", redis.SSLConnection),
        (
            redis.asyncio.Redis(unix_socket_path="/a", db=3, username="me", password=SECRET),
            "unix:///a/3",
            redis.UnixDomainSocketConnection,
        ),
        (
            redis.asyncio.ConnectionPool(host="a", port=1, db=3, password=SECRET, username="me"),
            "redis://a:1/3",
            redis.Connection,
        ),
        (redis.ConnectionPool.from_url(f"rediss://me:{SECRET}@a:1/3"), "rediss://a:1/3", redis.SSLConnection),
        (
            redis.ConnectionPool(host="a", port=1, db=3, username="me", password=SECRET, decode_responses=True),
            "redis://a:1/3",
            redis.Connection,
        ),
    ],
    ids=["a port", "TLS", "a socket", "a pool for tasks", "a pool with TLS", "a pool for threads"],
)
def test_a_client_for_tasks_and_a_pool_are_taken_with_their_settings(given: Any, address: str, kind: Any) -> None:
    (node,) = parse_nodes(given)
    assert node.address == address
    connection: Any = node.raw_connection(0.5)
    assert connection.__class__ is kind
    assert (connection.username, connection.password, connection.db) == ("me", SECRET, 3)
    assert SECRET not in repr(node)


def test_a_client_for_tasks_that_sentinels_lead_to_its_master_is_taken_as_such() -> None:
    sentinel = made_for_tasks_by([("a", 1), ("b", 2)], min_other_sentinels=1)
    (node,) = parse_nodes(sentinel.master_for("mymaster", db=3, password=SECRET))
    assert node.address == "redis+sentinel://a:1,b:2/mymaster/3"
    with pytest.raises(ConfigurationError, match="master_for"):
        parse_nodes(sentinel.slave_for("mymaster"))


@pytest.mark.parametrize("ssl", [False, True])
def test_a_cluster_client_for_tasks_is_taken_with_its_settings(ssl: bool) -> None:
    (node,) = parse_nodes(redis.asyncio.RedisCluster(host="a", port=1, password=SECRET, ssl=ssl))
    assert node.address == f"redis{'s' if ssl else ''}+cluster://a:1"
    connection: Any = node.raw_connection(0.5)
    assert connection.password == SECRET
    assert isinstance(connection, redis.SSLConnection) == ssl


async def _set_up(_connection: object) -> None:
    """Set a connection up in a task."""


class _Own(redis.asyncio.Connection):
    """A class of the user's own."""


class _Later(CredentialProvider):
    """Provider of credentials for tasks alone."""

    async def get_credentials_async(self) -> tuple[str, str]:
        return "me", SECRET


class _Awaited(CredentialProvider):
    """Provider whose credentials must be awaited."""

    async def get_credentials(self) -> Any:  # type: ignore[override]
        return "me", SECRET


@pytest.mark.parametrize(
    "settings",
    [
        {"redis_connect_func": _set_up},
        {"connection_class": _Own},
        {"credential_provider": _Later()},
        {"credential_provider": _Awaited()},
    ],
    ids=lambda one: str([*one]),
)
def test_what_only_tasks_could_open_is_refused(settings: dict[str, Any]) -> None:
    pool = redis.asyncio.ConnectionPool(**settings)
    with pytest.raises(TypeError, match="relock opens connections on threads"):
        parse_nodes(redis.asyncio.Redis(connection_pool=pool))


def test_a_client_of_valkey_py_is_taken_with_its_settings() -> None:
    given = valkey.Valkey(
        *("a", 1, 3, SECRET), username="me", decode_responses=True, socket_keepalive=True, retry_on_timeout=True
    )
    (node,) = parse_nodes(given)
    assert node.address == "redis://a:1/3"
    connection: Any = node.raw_connection(0.5)
    assert isinstance(connection, redis.Connection)
    assert (connection.username, connection.password, connection.db) == ("me", SECRET, 3)
    assert connection.socket_keepalive is True
    assert connection.encoder.decode_responses is False
    assert connection.retry._retries == 0
    assert SECRET not in repr(node)


@pytest.mark.parametrize(
    ("given", "checks"),
    [
        (valkey.Valkey.from_url("valkeys://a:1/0?ssl_ca_certs=ca.pem"), False),
        (valkey.Valkey.from_url("valkeys://a:1/0?ssl_ca_certs=ca.pem&ssl_check_hostname=1"), True),
        (valkey.Valkey("a", 1, ssl=True, ssl_ca_certs="ca.pem", ssl_check_hostname=True), True),
        (valkey.Valkey("a", 1, ssl=True, ssl_ca_certs="ca.pem"), False),
    ],
    ids=["of a URL", "of a URL that says so", "that says so", "by default"],
)
def test_a_client_of_valkey_py_with_tls_checks_what_it_checks_there(given: Any, checks: bool) -> None:
    (node,) = parse_nodes(given)
    assert node.address == "rediss://a:1/0"
    connection: Any = node.raw_connection(0.5)
    assert isinstance(connection, redis.SSLConnection)
    assert (connection.ca_certs, connection.check_hostname) == ("ca.pem", checks)


def test_a_client_of_valkey_py_that_asks_for_no_certificate_does_not() -> None:
    (node,) = parse_nodes(valkey.Valkey("a", 1, ssl=True, ssl_cert_reqs=None))
    connection: Any = node.raw_connection(0.5)
    assert connection.cert_reqs == ssl.CERT_NONE


def test_a_client_of_valkey_py_at_a_unix_socket_is_taken() -> None:
    (node,) = parse_nodes(valkey.Valkey(unix_socket_path="/run/c.sock", db=1))
    assert node.address == "unix:///run/c.sock/1"
    assert isinstance(node.raw_connection(0.5), redis.UnixDomainSocketConnection)


def test_what_a_client_of_valkey_py_does_to_connect_is_done() -> None:
    calls: list[object] = []
    (node,) = parse_nodes(valkey.Valkey("a", 1, valkey_connect_func=calls.append))
    connection: Any = node.raw_connection(0.5)
    connection.redis_connect_func("it")
    assert calls == ["it"]


valkeys: Any = valkey.sentinel.Sentinel  # has no types either


@pytest.mark.parametrize("is_tls", [False, True])
def test_a_client_that_the_sentinel_of_valkey_py_made_is_taken_with_its_settings(is_tls: bool) -> None:
    manager = valkeys([("a", 1), ("b", 2)], sentinel_kwargs={"password": SECRET}, min_other_sentinels=1)
    given = manager.master_for("mymaster", db=2, username="me", password=SECRET, ssl=is_tls)
    (node,) = parse_nodes(given)
    assert node.address == "redis+sentinel://a:1,b:2/mymaster/2"
    connection: Any = node.raw_connection(0.5)
    assert isinstance(connection, redis.sentinel.SentinelManagedConnection)
    assert isinstance(connection, redis.SSLConnection) is is_tls
    assert (connection.username, connection.password, connection.db) == ("me", SECRET, 2)
    assert node.discovery is not None
    assert node.discovery.min_other_sentinels == 1
    ((address, sentinel), _) = node.discovery.sentinels
    connection = sentinel(0.5)
    assert (address, connection.host, connection.port, connection.password) == ("a:1", "a", 1, SECRET)


def test_a_client_of_replicas_of_valkey_py_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="master_for"):
        Client(valkeys([("a", 1)]).slave_for("mymaster"))


class OwnConnection(valkey.Connection):
    pass


def test_a_client_of_valkey_py_that_redis_py_can_not_stand_in_for_is_refused() -> None:
    own = valkey.Valkey(connection_pool=valkey.ConnectionPool(connection_class=OwnConnection))
    with pytest.raises(TypeError, match=r"OwnConnection, which redis-py lacks: use a URL"):
        Client(own)
    odd = valkey.Valkey(connection_pool=valkey.ConnectionPool(host="h", password=SECRET, foo=1))
    with pytest.raises(ConfigurationError, match=r"valkey-py.*'foo'") as caught:
        Client(odd)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "fake",
    [
        fakeredis.FakeRedis,
        fakeredis.FakeStrictRedis,
        fakeredis.FakeAsyncRedis,
        fakeredis.FakeValkey,
        lambda: redis.Redis(connection_pool=fakeredis.FakeRedis().connection_pool),
        lambda: fakeredis.FakeRedis().connection_pool,
    ],
    ids=["FakeRedis", "FakeStrictRedis", "FakeAsyncRedis", "FakeValkey", "only its connections", "its pool"],
)
def test_a_client_of_fakeredis_is_refused_by_name_with_what_to_use(fake: Any) -> None:
    with pytest.raises(TypeError, match=r"fakeredis has no sockets.*relock\.testing\.Lab"):
        Client(fake())


@pytest.mark.parametrize("module", ["redis.multidb.client", "redis.asyncio.multidb.client"])
@pytest.mark.parametrize("origin", ["redis-py", "a class of that name", "a class of a user"])
def test_a_client_of_several_active_masters_is_refused_with_the_reason(module: str, origin: str) -> None:
    if origin == "redis-py":
        pytest.importorskip("redis.multidb", reason="this redis-py has no such client")
        pytest.importorskip("pybreaker", reason="redis-py's MultiDBClient needs it")
        kind = importlib.import_module(module).MultiDBClient
    else:
        kind = type("MultiDBClient", (), {"__module__": module})
    if origin == "a class of a user":
        kind = type("OurClient", (kind,), {})
    client = kind.__new__(kind)  # a whole one would look after its databases at once
    with pytest.raises(
        ConfigurationError, match=r"MultiDBClient can't be used.*masters that merge.*two owners"
    ) as caught:
        Client(client)
    assert caught.value.option == "nodes"
    with pytest.raises(ConfigurationError):
        AsyncClient(["redis://h", client])


def test_valkey_py_is_not_imported_without_need() -> None:
    code = "import sys, redis; from relock import Client; Client('valkey://h'); Client(redis.Redis())\n"
    code += "sys.exit('valkey' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
