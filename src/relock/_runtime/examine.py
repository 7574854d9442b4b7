"""What ``doctor`` asks of each master: whether everything that relock will need works there, tried rather than assumed.

The lock scripts run on a scratch lock of a random name, which nobody else can be using, and whose keys all have a short
TTL. Nothing else is written.
"""

import itertools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

from attrs import define, field, frozen
from redis import exceptions as redis_errors
from redis.crc import key_slot

from relock._errors import ConfigurationError
from relock._keys import LockKeys, client_channel, lock_keys, master_key, scan_pattern
from relock._runtime.failures import failure_of, with_advice, words_of
from relock._runtime.links import NETWORK_ERRORS, as_guard_ms, parse_info
from relock._runtime.nodes import Node, Wire, warning_of_number
from relock._runtime.slots import Range, members
from relock._scripts import load, pack_argument

CLOCK_SAMPLES = 5
CLOCK_OFFSET_SECONDS_MAX = 1.0
SCRATCH_LEASE_MS = 5_000
NEVER_VOID_US = b"%d" % 2**53  # the largest integer that Lua keeps
SCRIPT_ARGUMENTS: dict[str, str | int] = {
    "accused": "nobody",
    "count": 1,
    "fair": 1,
    "ticket": 0,
    "fence": 1,
    "hand": 1,
    "limit": 10,
    "lease_ms": SCRATCH_LEASE_MS,
    "token_ms": SCRATCH_LEASE_MS + 1_000,
    "alive_ms": SCRATCH_LEASE_MS,
    "queue_ms": SCRATCH_LEASE_MS,
}
REDIS_MIN, VALKEY_MIN = (6, 2), (7, 2)


class Verdict(StrEnum):
    """How bad a finding is. Only *wrong* makes doctor fail; *note* is what to know, and perhaps to change."""

    OK = "ok"
    NOTE = "note"
    WRONG = "wrong"


@frozen
class Finding:
    """One thing that was looked at.

    Attributes:
        check: what, in a word or two.
        says: what was found.
        advice: what to do about it; empty where there is nothing to do.
    """

    check: str
    verdict: Verdict
    says: str
    advice: str = ""


@define
class Examination:
    """What is known of one master.

    Attributes:
        run_id: which server it is; empty where INFO is refused.
        incarnation: what scripts compare with the marker; empty where INFO is refused.
        clock_offset: bounds (s) on its clock minus this machine's wall clock.
        guard: for how long (s) it has no vote after a restart, by its marker; None without a marker.
        vote_in: in how many seconds it has a vote, 0.0 if it has one; None without a marker.
        slots: how many slots of a cluster it serves; None for a server of its own.
    """

    address: str
    reachable: bool = False
    version: str = ""
    role: str = ""
    run_id: str = ""
    incarnation: str = ""
    clock_offset: tuple[float, float] | None = None
    guard: float | None = None
    vote_in: float | None = None
    slots: int | None = None
    findings: list[Finding] = field(factory=list)

    def add(self, check: str, verdict: Verdict, says: str, advice: str = "") -> None:
        """One more finding."""
        self.findings.append(Finding(check, verdict, says, advice))


def examine_all(nodes: Sequence[Node], prefix: str, timeout: float) -> list[Examination]:
    """Each master, as `examine`; of a cluster, each node that serves slots."""
    cluster = nodes[0].cluster
    if cluster is None:
        return [examine(node, prefix, timeout, len(nodes)) for node in nodes]
    try:
        found = members(cluster, timeout)
    except (*NETWORK_ERRORS, ConfigurationError) as error:
        failed = Examination(nodes[0].address)
        failed.add("reachable", Verdict.WRONG, failure_of(failed.address, error, sent=False).why)
        return [failed]
    return [examine(node, prefix, timeout, ranges=ranges) for node, ranges in found]


def examine(
    node: Node, prefix: str, timeout: float, masters: int = 1, ranges: Sequence[Range] | None = None
) -> Examination:
    """Everything about one master; what fails is a finding, never an exception.

    Args:
        node: the master.
        prefix: that of the locks' keys and channels, on which a user's rights may depend.
        timeout: seconds to wait for each reply.
        masters: of how many it is one.
        ranges: of slots that it serves, as a node of a cluster.
    """
    found = Examination(node.address)
    if ranges is not None:
        found.slots = sum(last + 1 - first for first, last, *_ in ranges)
    wire = node.connection(timeout)
    try:
        wire.connect()
        _ask(wire, "PING")
        found.reachable = True
        found.add("reachable", Verdict.OK, "it answers, and takes the credentials")
        _look_at_info(wire, found)
        _look_at_clock(wire, found)
        _look_at_votes(wire, found, prefix, masters)
        _look_at_persistence(wire, found, masters)
        _look_at_rights(wire, found)
        _look_at_listing(wire, found, prefix)
        _try_locks(node, _Scratch(wire, prefix, ranges), found, timeout)
    except NETWORK_ERRORS as error:
        says = failure_of(node.address, error, sent=False).why
        found.add("answers" if found.reachable else "reachable", Verdict.WRONG, says)
    finally:
        _close(wire)
    return found


def compare(examinations: Sequence[Examination]) -> list[Finding]:
    """What only shows when all masters are looked at together."""
    if len(examinations) == 1 or any(one.slots is not None for one in examinations):
        return []  # the nodes of a cluster are one master
    number = warning_of_number(len(examinations))
    findings = [] if number is None else [Finding("number", Verdict.NOTE, number)]
    return [*findings, *_same_servers(examinations), *_clocks(examinations), *_guards(examinations)]


def _same_servers(examinations: Sequence[Examination]) -> Iterator[Finding]:
    by_server: dict[str, list[str]] = {}
    for one in examinations:
        by_server.setdefault(one.run_id or one.address, []).append(one.address)
    for addresses in by_server.values():
        if len(addresses) > 1:
            yield Finding("independent", Verdict.WRONG, _one_server(addresses), "name each master once")


def _one_server(addresses: Sequence[str]) -> str:
    return f"{' and '.join(addresses)} are the same server, which would have as many votes"


def _clocks(examinations: Sequence[Examination]) -> Iterator[Finding]:
    """How far the masters' clocks are apart: bounds, because a reply takes its time."""
    known = [(one.address, *one.clock_offset) for one in examinations if one.clock_offset is not None]
    pairs = [
        (low - other_high, high - other_low, address, other)
        for (address, low, high), (other, other_low, other_high) in itertools.permutations(known, 2)
    ]
    if not pairs:
        return
    most = max(high for _, high, _, _ in pairs)
    least, at_most, ahead, behind = max(pairs)
    if least <= CLOCK_OFFSET_SECONDS_MAX:
        yield Finding("clocks", Verdict.OK, f"the masters' clocks differ by no more than {most:.4f} s")
        return
    says = f"the clock of {ahead} is {least:.4f} to {at_most:.4f} s ahead of that of {behind}"
    advice = "safe, but an acquire may cost another round trip, and a clock that is set costs votes: check NTP on all"
    yield Finding("clocks", Verdict.NOTE, says, advice)


def _guards(examinations: Sequence[Examination]) -> Iterator[Finding]:
    guards = sorted({one.guard for one in examinations if one.guard is not None})
    if len(guards) > 1:
        says = f"the masters' restart guards differ: {' and '.join(f'{guard:g} s' for guard in guards)}"
        yield Finding("guard", Verdict.NOTE, says, "set the same restart_guard in every client; the larger one counts")


def look_at(node: Node, prefix: str, timeout: float) -> tuple[str, str | None]:
    """What a client does not see on its own connections: which server it is, and whether waiters can be woken by it.

    Args:
        node: the master.
        prefix: that of the locks' channels.
        timeout: seconds to wait for each reply.

    Returns:
        The run_id, empty where INFO is refused; and what is wrong with Pub/Sub, in words, or None.

    Raises:
        redis.RedisError, OSError: it can't be reached, or refuses more than that.
    """
    listener = node.connection(timeout)
    try:
        listener.connect()
        info = _try(listener, "INFO", "server")
        # Not on the channel of a client in use: while this listens, a message there would count as received.
        refusal = _refusal_to_subscribe(listener, prefix, f"check-{os.urandom(8).hex()}")
    finally:
        _close(listener)
    run_id = "" if isinstance(info, Exception) else parse_info(info).get("run_id", "")
    return run_id, None if refusal is None else f"{node.address}: {refusal.says}: {refusal.advice}"


def check_independent(masters: Mapping[str, str]) -> None:
    """Refuses a server that is named more than once.

    Args:
        masters: the run_id of each that is known, by address.

    Raises:
        ConfigurationError: two of them are the same server.
    """
    by_server: dict[str, list[str]] = {}
    for address, run_id in masters.items():
        by_server.setdefault(run_id, []).append(address)
    for addresses in by_server.values():
        if len(addresses) > 1:
            raise ConfigurationError(f"{_one_server(addresses)}: name each master once", option="nodes")


def _ask(wire: Wire, *words: str | int | bytes) -> Any:
    wire.send_command(*words, check_health=False)
    return wire.read_response()


def _try(wire: Wire, *words: str | int | bytes) -> Any:
    """The reply, or the server's refusal as a value; a connection that breaks is raised."""
    try:
        return _ask(wire, *words)
    except redis_errors.ConnectionError:
        raise
    except redis_errors.ResponseError as error:
        return error


def _close(wire: Wire) -> None:
    try:
        wire.disconnect()
    except NETWORK_ERRORS:
        return


# INFO -----------------------------------------------------------------------------------------------------------------


def _look_at_info(wire: Wire, found: Examination) -> None:
    replies = [_try(wire, "INFO", section) for section in ("server", "replication", "memory")]
    refusal = next((reply for reply in replies if isinstance(reply, Exception)), None)
    if refusal is not None:
        advice = "allow this user INFO: without it a replica, a restart and an evicting policy go unnoticed"
        found.add("INFO", Verdict.WRONG, with_advice(str(refusal)), advice)
        return
    info = parse_info(b"\r\n".join(replies))
    found.run_id, found.role = info.get("run_id", ""), info.get("role", "")
    found.incarnation = f"{found.run_id}:{info.get('master_replid', '')}"
    found.version = info.get("valkey_version") or info.get("redis_version", "")
    found.add("INFO", Verdict.OK, "permitted")
    _judge_role(info, found)
    _judge_version(info, found)
    _judge_eviction(info, found)


def _judge_role(info: Mapping[str, str], found: Examination) -> None:
    mode = info.get("redis_mode") or info.get("server_mode", "standalone")
    if mode == "sentinel":
        found.add("role", Verdict.WRONG, "it is a Sentinel, which stores nothing", "name the master that it watches")
    elif mode == "cluster" and found.slots is None:
        found.add("role", Verdict.WRONG, "it is a node of a Cluster", "name it as redis+cluster://host:port")
    elif found.role != "master":
        says = f"it is a {found.role or 'server of unknown role'}, and a replica's locks are only copies"
        found.add("role", Verdict.WRONG, says, "name its master")
    else:
        replicas = int(info.get("connected_slaves", "0"))
        says = f"master with {replicas} replicas" if replicas else "master, independent of others"
        if found.slots is not None:
            says = f"{says.partition(',')[0]}, of {found.slots} slots of a Cluster"
        advice = f"a failover forgets what the replica does not have yet: {_remedy(found)}" if replicas else ""
        found.add("role", Verdict.NOTE if replicas else Verdict.OK, says, advice)


def _judge_version(info: Mapping[str, str], found: Examination) -> None:
    is_valkey = "valkey_version" in info
    product, least = ("Valkey", VALKEY_MIN) if is_valkey else ("Redis", REDIS_MIN)
    parts = tuple(int(part) for part in found.version.split(".")[:2] if part.isdigit())
    old = parts < least
    advice = f"use {product} {'.'.join(map(str, least))} or newer" if old else ""
    found.add("version", Verdict.WRONG if old else Verdict.OK, f"{product} {found.version}", advice)


def _judge_eviction(info: Mapping[str, str], found: Examination) -> None:
    policy = info.get("maxmemory_policy", "")
    if policy == "noeviction":
        found.add("eviction", Verdict.OK, "maxmemory-policy is noeviction")
    else:
        says = f"maxmemory-policy is {policy or 'not known'}: it may drop a lock that is held"
        found.add(
            "eviction", Verdict.WRONG, says, "CONFIG SET maxmemory-policy noeviction, and in its configuration file"
        )


# Clock, vote, persistence, listing ------------------------------------------------------------------------------------


def _look_at_clock(wire: Wire, found: Examination) -> None:
    """Each reply bounds the difference: the master read its clock after the request left, before the reply came."""
    low, high = float("-inf"), float("inf")
    for _ in range(CLOCK_SAMPLES):
        sent_at = time.time()
        reply = _try(wire, "TIME")
        now = time.time()
        if isinstance(reply, Exception):
            found.add("clock", Verdict.WRONG, with_advice(str(reply)), "allow this user TIME")
            return
        seconds = int(reply[0]) + int(reply[1]) / 1e6
        low, high = max(low, seconds - now), min(high, seconds - sent_at)
    low, high = min(low, high), max(low, high)  # our own clock may have been set meanwhile
    found.clock_offset = (low, high)
    far = low > CLOCK_OFFSET_SECONDS_MAX or high < -CLOCK_OFFSET_SECONDS_MAX
    advice = "safe, but check that NTP runs on both: a clock that is set while locks are held costs them" if far else ""
    says = f"{low:+.4f} to {high:+.4f} s against this machine's"
    found.add("clock", Verdict.NOTE if far else Verdict.OK, says, advice)


def _look_at_votes(wire: Wire, found: Examination, prefix: str, masters: int) -> None:
    """Whether it may grant locks, by its marker, judged as its own scripts do. Without a marker it has no guard yet."""
    marker = _try(wire, "HMGET", master_key(prefix), "incarnation", "no_vote_until_us", "guard_ms")
    now = _try(wire, "TIME")
    if isinstance(marker, Exception) and "WRONGTYPE" in str(marker):
        says = f"its marker, the key {master_key(prefix)}, is no hash: another program has written there"
        advice = "delete it, or give relock another prefix: no client can connect meanwhile"
        found.add("votes", Verdict.WRONG, says, advice)
        return
    if isinstance(marker, Exception) or isinstance(now, Exception):
        if masters > 1:
            advice = f"allow this user HMGET, TIME and the keys {prefix}:*"
            found.add(
                "votes", Verdict.WRONG, "whether it has a vote is not known: it refuses to show its marker", advice
            )
        return
    incarnation, until_us, guard_ms = marker
    if guard_ms is None:
        if masters > 1:
            says = "no client with a restart guard has used it yet: the first one that does has to wait for its vote"
            found.add("votes", Verdict.NOTE, says, "nothing to do: with several masters each client has such a guard")
        return
    known_ms = as_guard_ms(guard_ms)
    if known_ms is None or not (until_us or b"0").isdigit():
        says = f"its marker, the key {master_key(prefix)}, is damaged: another program has written there"
        advice = "the next client that has a restart guard begins it anew; one that has none refuses to connect"
        found.add("votes", Verdict.WRONG, says, advice)
        return
    found.guard = known_ms / 1000
    left = float(until_us or 0) / 1e6 - int(now[0]) - int(now[1]) / 1e6
    found.vote_in = min(max(left, 0.0), found.guard)
    _judge_vote(found, (incarnation or b"").decode(errors="replace"))


def _judge_vote(found: Examination, marked: str) -> None:
    """From what the marker says, and the incarnation it was `marked` with."""
    guard = found.guard or 0.0
    if found.incarnation and marked != found.incarnation:
        found.vote_in = guard
        says = f"it has restarted, failed over or lost its data since it was last used: no vote for {guard:g} s then"
    elif found.vote_in:
        says = f"it may have forgotten leases: no vote for {found.vote_in:.1f} s more"
    else:
        found.add("votes", Verdict.OK, f"it has a vote; the restart guard is {guard:g} s")
        return
    found.add("votes", Verdict.NOTE, says, "nothing to do: it grants no locks meanwhile")


def _look_at_persistence(wire: Wire, found: Examination, masters: int) -> None:
    """What a restart makes this master forget: without a guard, somebody else may get a lock that is held."""
    reply, settings = _try(wire, "INFO", "persistence"), _try(wire, "CONFIG", "GET", "*append*")
    saving = _try(wire, "CONFIG", "GET", "save")
    if isinstance(reply, Exception):
        found.add("persistence", Verdict.NOTE, f"not known: {reply}", "see restart_guard in the documentation")
        return
    fsync = _setting(settings, b"appendfsync")
    if parse_info(reply).get("aof_enabled") == "1":
        forgets = {"always": "", "everysec": "what was written in the last second or two"}.get(fsync, "the last writes")
    elif _setting(saving, b"save") or isinstance(saving, Exception):
        forgets = "every lock since its last snapshot (RDB), and all of them if it makes none"
    else:
        forgets = "every lock: it writes nothing to disk"
    _judge_persistence(found, forgets, masters)


def _look_at_rights(wire: Wire, found: Examination) -> None:
    """Whether this user may do what no guard notices. The names are none of databases, so nothing is swapped."""
    if not found.guard:
        return
    reply = _try(wire, "SWAPDB", "this", "that")
    if isinstance(reply, Exception) and "NOPERM" in words_of(reply):
        found.add("rights", Verdict.OK, "this user may not SWAPDB, which the restart guard would not notice")
    else:
        says = "this user may SWAPDB: that takes all locks of a database away, and the restart guard does not notice"
        found.add("rights", Verdict.NOTE, says, "take the right away (-swapdb in its ACL), from every user")


def _judge_persistence(found: Examination, forgets: str, masters: int) -> None:
    if not forgets:
        found.add("persistence", Verdict.OK, "a restart forgets nothing (AOF, appendfsync always)")
    elif found.guard:
        says = f"a restart forgets {forgets}; a restart guard of {found.guard:g} s is in use"
        found.add("persistence", Verdict.OK, says)
    elif masters > 1:
        advice = "leave restart_guard on: with several masters it is the ttl by default"
        found.add("persistence", Verdict.NOTE, f"a restart forgets {forgets}", advice)
    else:
        advice = f"{_remedy(found)}, or appendonly yes with appendfsync always"
        found.add("persistence", Verdict.NOTE, f"a restart forgets {forgets}", advice)


def _remedy(found: Examination) -> str:
    """What helps against a master that forgets: in a cluster there is no guard."""
    if found.slots is not None:
        return "check the token where the work takes effect"
    return "set restart_guard to the largest ttl in use"


def _setting(reply: Any, name: bytes) -> str:
    """One value of a CONFIG GET; empty where it is not set, or may not be read."""
    if isinstance(reply, Exception):
        return ""
    return str(dict(zip(reply[::2], reply[1::2], strict=True)).get(name, b"").decode(errors="replace"))


def _look_at_listing(wire: Wire, found: Examination, prefix: str) -> None:
    """Only ``ls`` needs it."""
    reply = _try(wire, "SCAN", 0, "MATCH", scan_pattern(prefix, "*"), "COUNT", 10)
    if isinstance(reply, Exception):
        found.add("SCAN", Verdict.NOTE, f"refused: {reply}", "allow this user SCAN, or do without `relock ls`")
    else:
        found.add("SCAN", Verdict.OK, "permitted")


# Scripts and Pub/Sub --------------------------------------------------------------------------------------------------


@define
class _Scratch:
    """A lock that nobody uses, two owners that want it, and the channel of their client."""

    wire: Wire
    prefix: str
    ranges: Sequence[Range] | None = None  # the lock is in one of these
    client: str = field(init=False)
    keys: LockKeys = field(init=False)
    channel: str = field(init=False)

    def __attrs_post_init__(self) -> None:
        while True:
            self.client = f"doctor-{os.urandom(8).hex()}"
            self.keys = lock_keys(self.prefix, f"relock {self.client}")
            slot = key_slot(self.keys.lock)
            if not self.ranges or any(first <= slot <= last for first, last, *_ in self.ranges):
                break
        self.channel = client_channel(self.prefix, self.client)

    def owner(self, name: str) -> str:
        """One of the owners."""
        return f"{self.client}:{name}"

    def call(self, script: str, owner: str, *rest: str | int) -> Any:
        """Runs a script as `owner`; returns its status, or the server's refusal."""
        loaded = load(script)
        values = SCRIPT_ARGUMENTS | {"owner": owner, "client": self.client}
        call = loaded.call(self.keys, *rest, **{name: values[name] for name in loaded.own_arguments})
        connection = {"void_us": NEVER_VOID_US, "incarnation": b"", "guard_ms": b"0"}
        known = b"".join(pack_argument(connection[name]) for name in loaded.connection_arguments)
        packed = call.pack(known, guarded=False, source=True)
        self.wire.send_packed_command([packed], check_health=False)
        try:
            reply = self.wire.read_response()
            return (reply.split()[0] if isinstance(reply, bytes) else reply[0]).decode()
        except redis_errors.ConnectionError:
            raise
        except redis_errors.ResponseError as error:
            return error

    def steps(self) -> Iterator[tuple[str, Any, str]]:
        """Each script, what it answered, and what it should have."""
        one, two = self.owner("1"), self.owner("2")
        yield "acquire", self.call("acquire", one), "granted"
        yield "enqueue", self.call("enqueue", two), "queued"
        yield "inspect", self.call("inspect", one), "held"
        yield "extend", self.call("extend", one), "extended"
        yield "count", self.call("count", one), "counted"
        yield "release", self.call("release", one), "released"
        yield "tend", self.call("tend", two, 1, two), "tended"
        yield "leave", self.call("leave", two), "left"
        yield "fence", self.call("fence", one), "fenced"
        yield "heal", self.call("heal", one), "healed"
        yield "give_back", self.call("give_back", two), "absent"
        yield "quarantine", self.call("quarantine", one), "absent"
        yield "force_release", self.call("force_release", one), "released"


def _try_locks(node: Node, scratch: _Scratch, found: Examination, timeout: float) -> None:
    """Runs each script once, while a second connection listens for the wake-up that the release publishes."""
    listener = node.connection(timeout)
    try:
        listener.connect()
        listens = _subscribe(listener, scratch, found)
        if listens:
            _count_receivers(scratch.wire, listener, scratch, found)
        _run_scripts(scratch, found)
        if listens:
            _await_wake_up(listener, found, timeout)
    finally:
        _close(listener)


def _subscribe(listener: Wire, scratch: _Scratch, found: Examination) -> bool:
    refusal = _refusal_to_subscribe(listener, scratch.prefix, scratch.client)
    if refusal is not None:
        found.findings.append(refusal)
    return refusal is None


def _refusal_to_subscribe(listener: Wire, prefix: str, client: str) -> Finding | None:
    """Has `listener` subscribe to the channel of `client`; what is wrong if that is refused."""
    reply = _try(listener, "SUBSCRIBE", client_channel(prefix, client))
    if not isinstance(reply, Exception):
        return None
    says = f"SUBSCRIBE is refused: {reply}; waiters are not woken, they only look again and again"
    advice = f"allow this user SUBSCRIBE and the channels {prefix}:client:*"
    return Finding("Pub/Sub", Verdict.WRONG, says, advice)


def _count_receivers(wire: Wire, listener: Wire, scratch: _Scratch, found: Examination) -> None:
    receivers = _try(wire, "PUBLISH", scratch.channel, "doctor")
    if isinstance(receivers, Exception):
        advice = f"allow this user PUBLISH and the channels {scratch.prefix}:client:*"
        found.add("PUBLISH", Verdict.WRONG, f"refused: {receivers}", advice)
    elif receivers == 1:
        found.add("PUBLISH", Verdict.OK, "it counts its receivers")
        listener.read_response()
        _ask_who_listens(wire, scratch, found)
    else:
        says = f"it counted {receivers} receivers where there is one"
        found.add("PUBLISH", Verdict.WRONG, says, "connect to the master itself, without a proxy between")


def _ask_who_listens(wire: Wire, scratch: _Scratch, found: Examination) -> None:
    """Only a release past many dead waiters does, and it does without."""
    counts = _try(wire, "PUBSUB", "NUMSUB", scratch.channel)
    if isinstance(counts, Exception):
        advice = "allow this user PUBSUB NUMSUB, or let a release past many dead waiters take longer"
        found.add("PUBSUB", Verdict.NOTE, f"refused: {counts}", advice)
    elif counts[1] == 1:
        found.add("PUBSUB", Verdict.OK, "it knows who listens")
    else:
        says = f"it knows of {counts[1]} listeners where there is one"
        found.add("PUBSUB", Verdict.WRONG, says, "connect to the master itself, without a proxy between")


def _run_scripts(scratch: _Scratch, found: Examination) -> None:
    failures, refused = [], set()
    for script, answer, wanted in scratch.steps():
        if isinstance(answer, Exception):
            failures.append(script)
            refused.add(with_advice(str(answer)))
        elif answer != wanted and not failures:  # what follows a failure starts from another state
            failures.append(script)
            refused.add(f"{script} answered {answer!r}, not {wanted!r}")
    if failures:
        says = f"{', '.join(failures)} failed: {'; '.join(sorted(refused))}"
        found.add("scripts", Verdict.WRONG, says, "see the documentation's ACL page; EVAL and EVALSHA are needed")
    else:
        found.add("scripts", Verdict.OK, "all lock scripts work")


def _await_wake_up(listener: Wire, found: Examination, timeout: float) -> None:
    """The message of the release to the next in the queue, from inside a script."""
    if any(finding.check == "scripts" and finding.verdict is not Verdict.OK for finding in found.findings):
        return
    if listener.can_read(timeout) and listener.read_response()[2].startswith(b"wake "):
        found.add("Pub/Sub", Verdict.OK, "a release wakes the next in the queue")
    else:
        says = f"the wake-up of a release did not arrive within {timeout:g} s"
        found.add(
            "Pub/Sub", Verdict.WRONG, says, "waiters would only notice by looking: check proxies and Pub/Sub limits"
        )
