"""Findings from a master's own replies: INFO, clock, vote, configuration, and the rights of this user."""

import time
from typing import Any

from redis import exceptions as redis_errors

from relock._core.info import ServerInfo, fields_of, read_info, refused_in_scripts
from relock._core.master_facts import NAMELESS
from relock._doctor.asking import try_to_ask
from relock._doctor.commands import ADVICE, missing_commands, refusals_in_scripts
from relock._doctor.findings import CLOCK_OFFSET_SECONDS_MAX, Examination, Verdict
from relock._doctor.marker import Marker, read_marker, utc
from relock._keys import master_key, scan_pattern
from relock._runtime.net.failures import with_advice, words_of
from relock._runtime.net.raw_connection import RawConnection

CLOCK_SAMPLES = 5
REDIS_MIN, VALKEY_MIN = (6, 2), (7, 2)
SERVICES = "allow it in this user's ACL; if the service forbids it, see the documentation's page on managed services"


def look_at_state(raw: RawConnection, found: Examination, prefix: str, masters: int) -> None:
    """Add the findings about one of `masters` masters; the keys of its locks begin with the prefix."""
    _look_at_commands(raw, found, prefix)
    look_briefly(raw, found, prefix, masters)
    _look_at_persistence(raw, found, masters)
    _look_at_rights(raw, found)
    _look_at_listing(raw, found, prefix)


def look_briefly(raw: RawConnection, found: Examination, prefix: str, masters: int) -> None:
    """Add those findings that no more than INFO, TIME and the master's marker tell."""
    _look_at_info(raw, found)
    _look_at_clock(raw, found)
    _look_at_votes(raw, found, prefix, masters)


def _look_at_commands(raw: RawConnection, found: Examination, prefix: str) -> None:
    missing = missing_commands(raw)
    if missing:
        found.add("commands", Verdict.WRONG, f"it does not know {', '.join(missing)}", ADVICE)
    else:
        found.add("commands", Verdict.OK, "it knows all commands that relock sends")
    for command, words in refusals_in_scripts(raw, prefix).items():
        verdict = Verdict.WRONG if command == "TIME" else Verdict.NOTE
        found.add("in scripts", verdict, refused_in_scripts(command, words), SERVICES)


def _look_at_info(raw: RawConnection, found: Examination) -> None:
    replies = [try_to_ask(raw, "INFO", section) for section in ("server", "replication", "memory")]
    refusal = next((reply for reply in replies if isinstance(reply, Exception)), None)
    if refusal is not None:
        advice = "allow this user INFO: without it a replica, a restart and an evicting policy go unnoticed"
        found.add("INFO", Verdict.WRONG, with_advice(str(refusal)), advice)
        return
    info = read_info(b"\r\n".join(replies))
    found.run_id, found.role, found.version = info.run_id, info.role, info.version
    found.incarnation = info.incarnation if info.run_id else ""
    if info.run_id:
        found.add("INFO", Verdict.OK, "permitted")
    else:
        advice = (
            'a restart_guard needs it: see restart_guard_by="marker" on the documentation\'s page on managed services'
        )
        found.add("INFO", Verdict.NOTE, "permitted, but it names no run_id", advice)
    _judge_role(info, found)
    _judge_version(info, found)
    _judge_eviction(info, found)


def _judge_role(info: ServerInfo, found: Examination) -> None:
    if info.mode == "sentinel":
        found.add("role", Verdict.WRONG, "it is a Sentinel, which stores nothing", "name the master that it watches")
    elif info.mode == "cluster" and found.slots is None:
        found.add("role", Verdict.WRONG, "it is a node of a Cluster", "name it as redis+cluster://host:port")
    elif found.role != "master":
        says = f"it is a {found.role or 'server of unknown role'}, and a replica's locks are only copies"
        found.add("role", Verdict.WRONG, says, "name its master")
    else:
        says = f"master with {info.replicas} replicas" if info.replicas else "master, independent of others"
        if found.slots is not None:
            says = f"{says.partition(',')[0]}, of {found.slots} slots of a Cluster"
        advice = f"a failover forgets what the replica does not have yet: {_remedy(found)}" if info.replicas else ""
        found.add("role", Verdict.NOTE if info.replicas else Verdict.OK, says, advice)


def _judge_version(info: ServerInfo, found: Examination) -> None:
    product, least = info.product, VALKEY_MIN if info.product == "Valkey" else REDIS_MIN
    parts = tuple(int(part) for part in found.version.split(".")[:2] if part.isdigit())
    old = parts < least
    advice = f"use {product} {'.'.join(map(str, least))} or newer" if old else ""
    found.add("version", Verdict.WRONG if old else Verdict.OK, f"{product} {found.version}", advice)


def _judge_eviction(info: ServerInfo, found: Examination) -> None:
    if info.policy == "noeviction":
        found.add("eviction", Verdict.OK, "maxmemory-policy is noeviction")
    else:
        says = f"maxmemory-policy is {info.policy or 'not known'}: it may drop a lock that is held"
        found.add(
            "eviction", Verdict.WRONG, says, "CONFIG SET maxmemory-policy noeviction, and in its configuration file"
        )


def _look_at_clock(raw: RawConnection, found: Examination) -> None:
    """Bound the clocks' difference: the master read its clock between a request and its reply."""
    low, high = float("-inf"), float("inf")
    for _ in range(CLOCK_SAMPLES):
        sent_at = time.time()
        reply = try_to_ask(raw, "TIME")
        now = time.time()
        if isinstance(reply, Exception):
            found.add("clock", Verdict.WRONG, with_advice(str(reply)), "allow this user TIME")
            return
        seconds = int(reply[0]) + int(reply[1]) / 1e6
        low, high = max(low, seconds - now), min(high, seconds - sent_at)
    low, high = min(low, high), max(low, high)  # our own clock may have been set during the samples
    found.clock_offset = (low, high)
    far = low > CLOCK_OFFSET_SECONDS_MAX or high < -CLOCK_OFFSET_SECONDS_MAX
    advice = "safe, but check that NTP runs on both: a clock that is set while locks are held costs them" if far else ""
    says = f"{low:+.4f} to {high:+.4f} s against this machine's"
    found.add("clock", Verdict.NOTE if far else Verdict.OK, says, advice)


def _look_at_votes(raw: RawConnection, found: Examination, prefix: str, masters: int) -> None:
    """Judge by a master's marker, as scripts do, whether it has a vote. Without a marker the master has no guard."""
    try:
        marker = read_marker(raw, prefix)
    except redis_errors.ConnectionError:
        raise
    except redis_errors.ResponseError as error:
        if "WRONGTYPE" in str(error):
            says = f"its marker, the key {master_key(prefix)}, is no hash: another program has written there"
            advice = "delete it, or give relock another prefix: no client can connect meanwhile"
            found.add("votes", Verdict.WRONG, says, advice)
        elif found.slots is None:  # a client of a cluster looks for no marker
            advice = f"allow this user HMGET, TIME and the keys {prefix}:*"
            found.add(
                "votes", Verdict.WRONG, "whether it has a vote is not known: it refuses to show its marker", advice
            )
        return
    if marker is None:
        if masters > 1:
            says = "no client with a restart guard has used it yet: the first one that does has to wait for its vote"
            found.add("votes", Verdict.NOTE, says, "nothing to do: with several masters each client has such a guard")
        return
    if marker.guard is None:
        says = f"its marker, the key {master_key(prefix)}, is damaged: another program has written there"
        advice = "the next client that has a restart guard begins it anew; one that has none refuses to connect"
        found.add("votes", Verdict.WRONG, says, advice)
        return
    found.guard, found.vote_in = marker.guard, marker.vote_in
    found.guard_set_by, found.guard_set_at = marker.set_by, marker.set_at
    _judge_vote(found, marker.guard, marker)


def _judge_vote(found: Examination, guard: float, marker: Marker) -> None:
    """Add the finding about the vote of a master that has a marker."""
    advice = (
        f"nothing to do: it grants no locks meanwhile. If a guard of {guard:g} s is a mistake: relock guard --lower"
    )
    if found.incarnation and marker.incarnation not in (found.incarnation, NAMELESS.decode()):
        found.vote_in = guard
        says = f"it has restarted, failed over or lost its data since it was last used: no vote for {guard:g} s then"
    elif found.vote_in:
        until = utc(marker.now + found.vote_in)
        says = f"it may have forgotten leases: no vote for {found.vote_in:.1f} s more, until {until}"
    else:
        found.add("votes", Verdict.OK, f"it has a vote; the restart guard is {guard:g} s{marker.origin}")
        return
    found.add("votes", Verdict.NOTE, f"{says}{marker.origin}", advice)


def _look_at_persistence(raw: RawConnection, found: Examination, masters: int) -> None:
    """Find what a restart makes this master forget: without a guard, a second owner may get a lock that is held."""
    reply, settings = try_to_ask(raw, "INFO", "persistence"), try_to_ask(raw, "CONFIG", "GET", "*append*")
    saving = try_to_ask(raw, "CONFIG", "GET", "save")
    if isinstance(reply, Exception):
        found.add("persistence", Verdict.NOTE, f"not known: {reply}", "see restart_guard in the documentation")
        return
    fsync = _setting(settings, b"appendfsync")
    if fields_of(reply).get("aof_enabled") == "1":
        forgets = {"always": "", "everysec": "what was written in the last second or two"}.get(fsync, "the last writes")
    elif _setting(saving, b"save") or isinstance(saving, Exception):
        forgets = "every lock since its last snapshot (RDB), and all of them if it makes none"
    else:
        forgets = "every lock: it writes nothing to disk"
    _judge_persistence(found, forgets, masters)


def _look_at_rights(raw: RawConnection, found: Examination) -> None:
    """Try SWAPDB, which no guard notices, with names that no databases have: so nothing is swapped."""
    if not found.guard:
        return
    reply = try_to_ask(raw, "SWAPDB", "this", "that")
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
    """Return the advice for a master that forgets: in a cluster there is no guard."""
    if found.slots is not None:
        return "check the token where the work takes effect"
    return "set restart_guard to the largest ttl in use"


def _setting(reply: Any, name: bytes) -> str:
    """Return one value of a CONFIG GET; empty if it is not set, or may not be read."""
    if isinstance(reply, Exception):
        return ""
    return str(dict(zip(reply[::2], reply[1::2], strict=True)).get(name, b"").decode(errors="replace"))


def _look_at_listing(raw: RawConnection, found: Examination, prefix: str) -> None:
    """Try SCAN, which only ``ls`` and ``top`` need."""
    reply = try_to_ask(raw, "SCAN", 0, "MATCH", scan_pattern(prefix, "*"), "COUNT", 10)
    if isinstance(reply, Exception):
        found.add(
            "SCAN", Verdict.NOTE, f"refused: {reply}", "allow this user SCAN, or do without `relock ls` and `top`"
        )
    else:
        found.add("SCAN", Verdict.OK, "permitted")
