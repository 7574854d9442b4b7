"""What ``doctor`` asks of one master: whether everything that relock will need works there, tried rather than assumed.

The lock scripts run on a scratch lock of a random name, which nobody else can be using, and whose keys all have a short
TTL. Nothing else is written.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

from attrs import define, field, frozen
from redis import exceptions as redis_errors

from relock._keys import LockKeys, client_channel, lock_keys, master_key, scan_pattern
from relock._runtime.failures import failure_of, with_advice
from relock._runtime.links import NETWORK_ERRORS, parse_info
from relock._runtime.nodes import Node, Wire
from relock._scripts import load

CLOCK_SAMPLES = 5
CLOCK_OFFSET_SECONDS_MAX = 1.0
SCRATCH_LEASE_MS = 5_000
NEVER_VOID_US = b"%d" % 2**53  # the largest integer that Lua keeps
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
        clock_offset: bounds (s) on its clock minus this machine's wall clock.
    """

    address: str
    reachable: bool = False
    version: str = ""
    role: str = ""
    run_id: str = ""
    clock_offset: tuple[float, float] | None = None
    findings: list[Finding] = field(factory=list)

    def add(self, check: str, verdict: Verdict, says: str, advice: str = "") -> None:
        """One more finding."""
        self.findings.append(Finding(check, verdict, says, advice))


def examine(node: Node, prefix: str, timeout: float) -> Examination:
    """Everything about one master; what fails is a finding, never an exception.

    Args:
        node: the master.
        prefix: that of the locks' keys and channels, on which a user's rights may depend.
        timeout: seconds to wait for each reply.
    """
    found = Examination(node.address)
    wire = node.connection(timeout)
    try:
        wire.connect()
        _ask(wire, "PING")
        found.reachable = True
        found.add("reachable", Verdict.OK, "it answers, and takes the credentials")
        _look_at_info(wire, found)
        _look_at_clock(wire, found)
        _look_at_persistence(wire, found, prefix)
        _look_at_listing(wire, found, prefix)
        _try_locks(node, wire, found, prefix, timeout)
    except NETWORK_ERRORS as error:
        says = failure_of(node.address, error, sent=False).why
        found.add("answers" if found.reachable else "reachable", Verdict.WRONG, says)
    finally:
        _close(wire)
    return found


def compare(examinations: Sequence[Examination]) -> list[Finding]:
    """What only shows when all masters are looked at together."""
    findings = []
    if len(examinations) > 1 and len(examinations) % 2 == 0:
        says = f"{len(examinations)} masters survive no more failures than {len(examinations) - 1} do"
        findings.append(Finding("number", Verdict.NOTE, says, "use an odd number"))
    by_server: dict[str, list[str]] = {}
    for one in examinations:
        if one.run_id:
            by_server.setdefault(one.run_id, []).append(one.address)
    for addresses in by_server.values():
        if len(addresses) > 1:
            says = f"{' and '.join(addresses)} are the same server, which would have as many votes"
            findings.append(Finding("independent", Verdict.WRONG, says, "name each master once"))
    return findings


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
    found.version = info.get("valkey_version") or info.get("redis_version", "")
    found.add("INFO", Verdict.OK, "permitted")
    _judge_role(info, found)
    _judge_version(info, found)
    _judge_eviction(info, found)


def _judge_role(info: Mapping[str, str], found: Examination) -> None:
    mode = info.get("redis_mode") or info.get("server_mode", "standalone")
    if mode == "sentinel":
        found.add("role", Verdict.WRONG, "it is a Sentinel, which stores nothing", "name the master that it watches")
    elif mode == "cluster":
        found.add("role", Verdict.WRONG, "it is a node of a Cluster, which is not supported yet", "use one master")
    elif found.role != "master":
        says = f"it is a {found.role or 'server of unknown role'}, and a replica's locks are only copies"
        found.add("role", Verdict.WRONG, says, "name its master")
    else:
        replicas = int(info.get("connected_slaves", "0"))
        says = f"master with {replicas} replicas" if replicas else "master, independent of others"
        advice = (
            "a failover forgets what the replica did not have yet; no lock should depend on one" if replicas else ""
        )
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


# Clock, persistence, listing ------------------------------------------------------------------------------------------


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


def _look_at_persistence(wire: Wire, found: Examination, prefix: str) -> None:
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
    guard = _guard_seconds(wire, prefix)
    if not forgets:
        found.add("persistence", Verdict.OK, "a restart forgets nothing (AOF, appendfsync always)")
    elif guard:
        found.add("persistence", Verdict.OK, f"a restart forgets {forgets}; a restart guard of {guard:g} s is in use")
    else:
        advice = "set restart_guard to the largest ttl in use, or appendonly yes with appendfsync always"
        found.add("persistence", Verdict.NOTE, f"a restart forgets {forgets}", advice)


def _setting(reply: Any, name: bytes) -> str:
    """One value of a CONFIG GET; empty where it is not set, or may not be read."""
    if isinstance(reply, Exception):
        return ""
    return str(dict(zip(reply[::2], reply[1::2], strict=True)).get(name, b"").decode(errors="replace"))


def _guard_seconds(wire: Wire, prefix: str) -> float:
    reply = _try(wire, "HGET", master_key(prefix), "guard_ms")
    return 0.0 if isinstance(reply, Exception) or reply is None else int(reply) / 1000


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
    client: str = field(factory=lambda: f"doctor-{os.urandom(8).hex()}")
    keys: LockKeys = field(init=False)
    channel: str = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.keys = lock_keys(self.prefix, f"relock {self.client}")
        self.channel = client_channel(self.prefix, self.client)

    def owner(self, name: str) -> str:
        """One of the owners."""
        return f"{self.client}:{name}"

    def call(self, script: str, *rest: str | int, **own: str | int) -> Any:
        """Runs a script; returns its status, or the server's refusal."""
        loaded = load(script)
        call = loaded.call(self.keys, *rest, **own)
        connection = {"void_us": NEVER_VOID_US, "incarnation": b"", "guard_ms": b"0"}
        known = [connection[name] for name in loaded.connection_arguments]
        packed = loaded.pack_source(self.keys, [*call.arguments, *known, *call.rest], guarded=False)
        self.wire.send_packed_command([packed], check_health=False)
        try:
            return self.wire.read_response()[0].decode()
        except redis_errors.ConnectionError:
            raise
        except redis_errors.ResponseError as error:
            return error

    def steps(self) -> Iterator[tuple[str, Any, str]]:
        """Each script, what it answered, and what it should have."""
        one, two, lease = self.owner("1"), self.owner("2"), SCRATCH_LEASE_MS
        terms = {"count": 1, "lease_ms": lease, "fair": 1}
        alive = {"alive_ms": lease, "queue_ms": lease}
        yield "acquire", self.call("acquire", owner=one, **terms), "granted"
        yield "enqueue", self.call("enqueue", owner=two, **terms, **alive), "queued"
        yield "inspect", self.call("inspect", limit=10), "held"
        yield "extend", self.call("extend", owner=one, lease_ms=lease), "extended"
        yield "count", self.call("count", owner=one, count=2, lease_ms=0), "counted"
        yield "release", self.call("release", owner=one, fence=0, lease_ms=lease), "released"
        yield "tend", self.call("tend", 1, two, client=self.client, **alive), "tended"
        yield "leave", self.call("leave", owner=two), "left"
        yield "force_release", self.call("force_release", fence=0, lease_ms=lease), "absent"


def _try_locks(node: Node, wire: Wire, found: Examination, prefix: str, timeout: float) -> None:
    """Runs each script once, while a second connection listens for the wake-up that the release publishes."""
    scratch = _Scratch(wire, prefix)
    listener = node.connection(timeout)
    try:
        listener.connect()
        listens = _subscribe(listener, scratch, found)
        if listens:
            _count_receivers(wire, listener, scratch, found)
        _run_scripts(scratch, found)
        if listens:
            _await_wake_up(listener, found, timeout)
    finally:
        _close(listener)


def _subscribe(listener: Wire, scratch: _Scratch, found: Examination) -> bool:
    reply = _try(listener, "SUBSCRIBE", scratch.channel)
    if isinstance(reply, Exception):
        advice = f"allow this user SUBSCRIBE and the channels {scratch.prefix}:client:*"
        found.add("Pub/Sub", Verdict.WRONG, f"refused: {reply}", advice)
        return False
    return True


def _count_receivers(wire: Wire, listener: Wire, scratch: _Scratch, found: Examination) -> None:
    receivers = _try(wire, "PUBLISH", scratch.channel, "doctor")
    if isinstance(receivers, Exception):
        advice = f"allow this user PUBLISH and the channels {scratch.prefix}:client:*"
        found.add("PUBLISH", Verdict.WRONG, f"refused: {receivers}", advice)
    elif receivers == 1:
        found.add("PUBLISH", Verdict.OK, "it counts its receivers")
        listener.read_response()
    else:
        says = f"it counted {receivers} receivers where there is one"
        found.add("PUBLISH", Verdict.WRONG, says, "connect to the master itself, without a proxy between")


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
