"""Scratch lock and semaphore of ``doctor``, on which all scripts run, and the channel on which its waiter is woken."""

import os
from collections.abc import Iterator, Sequence
from typing import Any

from attrs import define, field
from redis import exceptions as redis_errors
from redis.crc import key_slot

from relock._doctor.asking import close, try_to_ask
from relock._doctor.findings import Examination, Finding, Verdict
from relock._keys import LockKeys, client_channel, latch_keys, lock_keys, name_channel, permit_keys
from relock._owner import SHARD_MARK
from relock._runtime.net.failures import is_unknown_command, with_advice
from relock._runtime.net.node import Node
from relock._runtime.net.raw_connection import RawConnection
from relock._runtime.net.slots import Range, allows_shard_channels
from relock._scripts import load, pack_argument

SCRATCH_LEASE_MS = 5_000
SHARDED = "sharded channels"
NEVER_NOT_AFTER_US = b"%d" % 2**53  # a not-after time that never comes; Lua's numbers are exact up to this one
SCRIPT_ARGUMENTS: dict[str, str | int] = {
    "accused": "nobody",
    "seen": "nothing",
    "count": 1,
    "value": 1,
    "slot": -1,
    "cap": 1,
    "ttl_ms": 0,  # an override or an arrival of no time leaves no key behind
    "fair": 1,
    "ticket": 0,
    "fence": 1,
    "proposal": 0,
    "hand": 1,
    "rest_ms": SCRATCH_LEASE_MS,
    "limit": 10,
    "party": "nobody",
    "parties": 2,
    "waiter": "",
    "most": 1,
    "lease_ms": SCRATCH_LEASE_MS,
    "token_ms": SCRATCH_LEASE_MS + 1_000,
    "alive_ms": SCRATCH_LEASE_MS,
    "queue_ms": SCRATCH_LEASE_MS,
    "message": "hello",
}


@define
class Scratch:
    """Lock and semaphore with a random name, two owners that want them, and the channel of their client."""

    raw: RawConnection
    prefix: str
    ranges: Sequence[Range] | None = None  # the lock's slot is in one of these
    client: str = field(init=False)
    keys: LockKeys = field(init=False)
    channel: str = field(init=False)
    mark: str = field(default="", init=False)  # begins the names of waiters

    def __attrs_post_init__(self) -> None:
        while True:
            self.client = f"doctor-{os.urandom(8).hex()}"
            self.keys = lock_keys(self.prefix, f"relock {self.client}")
            slot = key_slot(self.keys.lock)
            if not self.ranges or any(first <= slot <= last for first, last, *_ in self.ranges):
                break
        self.channel = client_channel(self.prefix, self.client)

    def owner(self, name: str) -> str:
        """Return the owner with this name: a reader, or one that wants one permit of one."""
        return f"{self.client}:{self.mark}{name}&#1/1"

    @property
    def sharded_channel(self) -> str:
        """Channel on which the waiter listens on a Cluster."""
        return name_channel(self.prefix, self.keys.name, self.client)

    def _keys_for(self, script: str) -> LockKeys:
        make = {"permit": permit_keys, "latch": latch_keys}.get(script.partition("_")[0], lock_keys)
        return make(self.prefix, self.keys.name)

    def call(self, script: str, owner: str, *rest: str | int) -> Any:
        """Run a script as `owner`; return its status, or the server's refusal."""
        loaded = load(script) if self.ranges is None else load(script).on_cluster
        values = SCRIPT_ARGUMENTS | {"owner": owner, "client": self.client}
        keys = self._keys_for(script)
        call = loaded.call(keys, *rest, **{name: values[name] for name in loaded.own_arguments})
        connection = {"not_after_us": NEVER_NOT_AFTER_US, "incarnation": b"", "guard_ms": b"0"}
        known = b"".join(pack_argument(connection[name]) for name in loaded.connection_arguments)
        packed = call.pack(known, guarded=False, source=True)
        self.raw.send_packed_command([packed], check_health=False)
        try:
            reply = self.raw.read_response()
            return (reply.split()[0] if isinstance(reply, bytes) else reply[0]).decode()
        except redis_errors.ConnectionError:
            raise
        except redis_errors.ResponseError as error:
            return error

    def steps(self) -> Iterator[tuple[str, Any, str]]:
        """Run each script; yield its name, the status that it returned, and the status that it should have returned."""
        one, two = self.owner("1"), self.owner("2")
        yield "acquire", self.call("acquire", one), "granted"
        yield "enqueue", self.call("enqueue", two), "queued"
        yield "inspect", self.call("inspect", one), "held"
        yield "extend", self.call("extend", one, "a note"), "extended"
        yield "count", self.call("count", one), "counted"
        yield "release", self.call("release", one), "released"
        yield "heartbeat", self.call("heartbeat", two, 1, two), "tended"
        yield "leave", self.call("leave", two), "left"
        yield "fence", self.call("fence", one), "fenced"
        yield "heal", self.call("heal", one), "healed"
        yield "give_back", self.call("give_back", two), "absent"
        yield "quarantine", self.call("quarantine", one), "absent"
        yield "lower_guard", self.call("lower_guard", one), "absent"
        yield "notify", self.call("notify", one), "told"
        yield "rest", self.call("rest", one), "released"
        yield "force_release", self.call("force_release", one), "released"
        yield "read_acquire", self.call("read_acquire", one), "granted"
        yield "read_enqueue", self.call("read_enqueue", two), "granted"
        yield "read_extend", self.call("read_extend", one), "extended"
        yield "read_heal", self.call("read_heal", one), "healed"
        yield "read_heartbeat", self.call("read_heartbeat", one, 1, two), "tended"
        yield "read_give_back", self.call("read_give_back", two), "released"
        yield "read_release", self.call("read_release", one), "released"
        yield "latch_arrive", self.call("latch_arrive", one), "arrived"
        yield "latch_look", self.call("latch_look", one), "seen"
        yield "permit_acquire", self.call("permit_acquire", one), "granted"
        yield "permit_enqueue", self.call("permit_enqueue", two), "queued"
        yield "permit_inspect", self.call("permit_inspect", one), "info"
        yield "permit_extend", self.call("permit_extend", one), "extended"
        yield "permit_release", self.call("permit_release", one), "released"
        yield "permit_heartbeat", self.call("permit_heartbeat", two, 1, two), "tended"
        yield "permit_override", self.call("permit_override", one), "set"
        yield "permit_leave", self.call("permit_leave", two), "left"
        yield "permit_heal", self.call("permit_heal", one), "healed"
        yield "permit_give_back", self.call("permit_give_back", one), "released"


def try_locks(node: Node, scratch: Scratch, found: Examination, timeout: float) -> None:
    """Run each script once, while a second connection listens for the wake-up that the release publishes."""
    listener = node.raw_connection(timeout)
    try:
        listener.connect()
        if scratch.ranges is not None and _try_sharded_channels(listener, scratch, found):
            is_heard = True
        else:
            is_heard = _subscribe(listener, scratch, found) and _count_receivers(scratch.raw, listener, scratch, found)
        _run_scripts(scratch, found)
        if is_heard:
            _await_wake_up(listener, found, timeout)
    finally:
        close(listener)


def _try_sharded_channels(listener: RawConnection, scratch: Scratch, found: Examination) -> bool:
    """Let `listener` subscribe on a node of a Cluster, as waiters do; return False if they use other channels there."""
    raw, channel = scratch.raw, scratch.sharded_channel
    advice = f"allow this user SSUBSCRIBE, SUNSUBSCRIBE, SPUBLISH and the channels {scratch.prefix}:{{*}}:client:*"
    reply = try_to_ask(listener, "SSUBSCRIBE", channel)
    if isinstance(reply, Exception):
        if not is_unknown_command(str(reply)):
            says = f"SSUBSCRIBE is refused: {reply}; a dead waiter costs the next ones up to 10 s"
            found.add(SHARDED, Verdict.NOTE, says, advice)
        return False
    receivers = try_to_ask(raw, "SPUBLISH", channel, "doctor")
    if receivers != 1:
        says = (
            f"SPUBLISH is refused: {receivers}" if isinstance(receivers, Exception) else f"SPUBLISH counts {receivers}"
        )
        found.add(SHARDED, Verdict.WRONG, f"{says}; a release wakes no waiter", advice)
        return False
    listener.read_response()
    counts = try_to_ask(raw, "PUBSUB", "SHARDNUMSUB", channel)
    if isinstance(counts, Exception):
        says = f"PUBSUB SHARDNUMSUB is refused: {counts}; it takes longer to pass over many dead waiters"
        found.add(SHARDED, Verdict.NOTE, says, "allow this user PUBSUB SHARDNUMSUB")
    else:
        found.add(SHARDED, Verdict.OK, "they count their listeners: a release passes over dead waiters at once")
    scratch.mark = SHARD_MARK.decode()
    _try_probes(listener, scratch, found)
    return True


def _try_probes(listener: RawConnection, scratch: Scratch, found: Examination) -> None:
    """Add the finding if clients can't ask each other what their callers wait for."""
    refusal = refusal_to_subscribe(listener, scratch.prefix, scratch.client)
    refusal = refusal or refusal_to_publish(scratch.raw, scratch.prefix, scratch.client)
    if refusal is None:
        listener.read_response()
    else:
        found.findings.append(without_probes(refusal))


def without_probes(refusal: Finding) -> Finding:
    """Return the finding for a refusal where waiters listen on sharded channels, and only probes need the others."""
    says = f"{refusal.says.partition(';')[0]}; deadlocks between clients are not found"
    return Finding(refusal.check, Verdict.NOTE, says, refusal.advice)


def has_sharded_channels(listener: RawConnection, prefix: str, client: str) -> bool:
    """Return whether a node of a Cluster lets `listener` subscribe to sharded channels, in whatever slot."""
    return allows_shard_channels(try_to_ask(listener, "SSUBSCRIBE", name_channel(prefix, "relock", client)))


def _subscribe(listener: RawConnection, scratch: Scratch, found: Examination) -> bool:
    refusal = refusal_to_subscribe(listener, scratch.prefix, scratch.client)
    if refusal is not None:
        found.findings.append(refusal)
    return refusal is None


def refusal_to_subscribe(listener: RawConnection, prefix: str, client: str) -> Finding | None:
    """Let `listener` subscribe to the channel of `client`; return the finding if that is refused, else None."""
    reply = try_to_ask(listener, "SUBSCRIBE", client_channel(prefix, client))
    if not isinstance(reply, Exception):
        return None
    says = f"SUBSCRIBE is refused: {reply}; waiters are not woken, they only look again and again"
    advice = f"allow this user SUBSCRIBE and the channels {prefix}:client:*"
    return Finding("Pub/Sub", Verdict.WRONG, says, advice)


def refusal_to_publish(raw: RawConnection, prefix: str, client: str) -> Finding | None:
    """Publish to the channel of `client`; return the finding if that is refused, else None."""
    reply = try_to_ask(raw, "PUBLISH", client_channel(prefix, client), "hello")
    return _judge_refusal(reply, prefix) if isinstance(reply, Exception) else None


def _judge_refusal(refusal: Exception, prefix: str) -> Finding:
    """Return the finding for a refused message; no script fails because of it, so only this finding shows it."""
    says = f"PUBLISH is refused: {refusal}; a release wakes no waiter, and waiters look only with their heartbeats"
    return Finding("PUBLISH", Verdict.WRONG, says, f"allow this user PUBLISH and the channels {prefix}:client:*")


def _count_receivers(raw: RawConnection, listener: RawConnection, scratch: Scratch, found: Examination) -> bool:
    """Add the finding whether PUBLISH counts its one receiver; return False if PUBLISH is refused."""
    receivers = try_to_ask(raw, "PUBLISH", scratch.channel, "doctor")
    if isinstance(receivers, Exception):
        found.findings.append(_judge_refusal(receivers, scratch.prefix))
        return False
    if receivers == 1:
        found.add("PUBLISH", Verdict.OK, "it counts its receivers")
        listener.read_response()
        _ask_who_listens(raw, scratch, found)
    else:
        says = f"it counted {receivers} receivers where there is one"
        found.add("PUBLISH", Verdict.WRONG, says, "connect to the master itself, without a proxy between")
    return True


def _ask_who_listens(raw: RawConnection, scratch: Scratch, found: Examination) -> None:
    """Try PUBSUB NUMSUB, which tells whether waiters are alive: many at once, or one while readers have the lock."""
    counts = try_to_ask(raw, "PUBSUB", "NUMSUB", scratch.channel)
    if isinstance(counts, Exception):
        advice = "allow this user PUBSUB NUMSUB, or let dead waiters hold others up for longer"
        found.add("PUBSUB", Verdict.NOTE, f"refused: {counts}", advice)
    elif counts[1] == 1:
        found.add("PUBSUB", Verdict.OK, "it counts listeners")
    else:
        says = f"it knows of {counts[1]} listeners where there is one"
        found.add("PUBSUB", Verdict.WRONG, says, "connect to the master itself, without a proxy between")


def _run_scripts(scratch: Scratch, found: Examination) -> None:
    failures, refused = [], set()
    for script, answer, wanted in scratch.steps():
        if isinstance(answer, Exception):
            failures.append(script)
            refused.add(with_advice(str(answer)))
        elif answer != wanted and not failures:  # after a failure, scripts begin from another state
            failures.append(script)
            refused.add(f"{script} answered {answer!r}, not {wanted!r}")
    if failures:
        says = f"{', '.join(failures)} failed: {'; '.join(sorted(refused))}"
        found.add("scripts", Verdict.WRONG, says, "see the documentation's ACL page; EVAL and EVALSHA are needed")
    else:
        found.add("scripts", Verdict.OK, "all scripts work")


def _await_wake_up(listener: RawConnection, found: Examination, timeout: float) -> None:
    """Wait for the wake-up that the release has published to the next waiter; add the finding."""
    if any(finding.check == "scripts" and finding.verdict is not Verdict.OK for finding in found.findings):
        return
    if listener.can_read(timeout) and listener.read_response()[2].startswith(b"wake "):
        found.add("Pub/Sub", Verdict.OK, "a release wakes the next in the queue")
    else:
        says = f"the wake-up of a release did not arrive within {timeout:g} s"
        found.add(
            "Pub/Sub", Verdict.WRONG, says, "waiters would only notice by looking: check proxies and Pub/Sub limits"
        )
