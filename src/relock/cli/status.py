"""``relock status``: the holders of a lock or a semaphore and their waiters, or the parties at a latch."""

import json
import math
import time
from collections.abc import Iterator
from typing import Any, Never

import click

from relock import Client, LatchInfo, LockInfo, QuorumError, SemaphoreInfo
from relock._core.deadlocks import texts_of
from relock._keys import LATCH, LOCK, SEMAPHORE
from relock._owner import described
from relock._rings import ANSWER_SECONDS, Found, find_rings
from relock.cli._exit_codes import of_signal
from relock.cli._nodes import Where, json_option, node_options
from relock.cli._output import fitted, printable, screen_width, span
from relock.cli._signals import Interrupted, ended_by_signals
from relock.cli._states import State, common_facts, facts_of, in_words, look

WATCH_SECONDS = 1.0
_INDENT = 12  # of each text, after its label

# `python -OO` would drop a docstring.
HELP = """Show the holder of the lock NAME, or its readers, and its waiters, as a quorum of the masters agree on them.

For each owner its process and host are shown, and what owner= names, before its name on the masters.

With --semaphore, NAME is a semaphore: show its limit, its holders and its waiters. The masters do not store the limit:
it is that of the holders and waiters, unless an operator has set another one.

With --latch, NAME is a latch: show which parties have arrived, and how many are missing.

Since when it is held, and waited for, is an approximation: the masters' clocks tell it. A lock of another library has
no owner that relock can name.

With --watch the same is shown anew each second, until Ctrl-C.

If callers wait for the lock, the clients of its holders are asked for what these wait, and so on: a ring of callers
that wait for each other is shown. A client that does not answer within 5 s is named.
"""


@click.command(help=HELP)
@click.argument("name")
@click.option("--semaphore", is_flag=True, help="NAME is a semaphore, not a lock.")
@click.option("--latch", is_flag=True, help="NAME is a latch, not a lock.")
@click.option("--watch", is_flag=True, help="Show it anew each second.")
@node_options
@json_option
@click.pass_context
def status(
    ctx: click.Context, *, name: str, semaphore: bool, latch: bool, watch: bool, where: Where, as_json: bool
) -> None:
    """Print the holders and the waiters."""
    if semaphore and latch:
        raise click.UsageError("--semaphore and --latch exclude each other")
    kind = SEMAPHORE if semaphore else LATCH if latch else LOCK
    with where.client() as client:
        if not watch:
            _print(show(client, name, kind, as_json), as_json)
            return
        try:
            with ended_by_signals():
                _show_again_and_again(client, name, kind, as_json)
        except Interrupted as interrupt:
            ctx.exit(of_signal(interrupt.signum))


def _show_again_and_again(client: Client, name: str, kind: str, as_json: bool) -> Never:
    while True:
        try:
            shown = show(client, name, kind, as_json)
        except QuorumError as error:  # the masters may be back soon
            shown = json.dumps({"name": name, "error": str(error)}) if as_json else f"not known: {error}"
        click.clear()  # only a terminal
        _print(shown, as_json)
        time.sleep(WATCH_SECONDS)


def _print(shown: str, as_json: bool) -> None:
    click.echo(shown if as_json else fitted(shown, screen_width(), _INDENT))


def show(client: Client, name: str, kind: str, as_json: bool) -> str:
    """Return the state as text, or as one line of JSON; ask for deadlocks if callers wait."""
    info = look(client, name, kind)
    is_ring_possible = isinstance(info, LockInfo) and info.queue and info.holders
    found = find_rings(client._session, name) if is_ring_possible else None
    if found:
        info = look(client, name, kind)  # the questions may have taken seconds
    if as_json:
        return json.dumps(_as_json(info, found))
    lines = [*_lines(info), *_rings(found)]
    return "\n".join(f"{label:<{_INDENT}}{printable(text)}" for label, text in lines)


def _as_json(info: State, found: Found | None) -> dict[str, Any]:
    if isinstance(info, LatchInfo):
        return _latch_as_json(info)
    return _semaphore_as_json(info) if isinstance(info, SemaphoreInfo) else _lock_as_json(info, found)


def _lock_as_json(info: LockInfo, found: Found | None) -> dict[str, Any]:
    cycles, silent, problem = found or Found((), ())
    rings = [[{"lock": lock, "waiter": waiter, "holder": holder} for lock, waiter, holder in one] for one in cycles]
    return {
        **common_facts(info),
        "held": info.held,
        "resting": info.resting,
        "owner": info.owner,
        "hold_count": info.hold_count,
        "held_for_seconds": info.held_for,
        "lease_left_seconds": info.ttl if math.isfinite(info.ttl) else None,  # JSON knows no infinity
        "token": info.token,
        "note": info.note,
        "readers": [
            {
                "owner": reader.owner,
                "hold_count": reader.hold_count,
                "lease_left_seconds": reader.ttl,
                "note": reader.note,
            }
            for reader in info.readers
        ],
        "waits_seconds": list(info.waits),
        "deadlocks": None if problem else rings,
        "silent": list(silent),
    }


def _semaphore_as_json(info: SemaphoreInfo) -> dict[str, Any]:
    return {
        **common_facts(info),
        "limits": list(info.limits),
        "override": info.override,
        "used": info.used,
        "holders": [
            {
                "owner": holder.owner,
                "permits": holder.permits,
                "slot": holder.slot,
                "lease_left_seconds": holder.ttl,
            }
            for holder in info.holders
        ],
        "waits_seconds": list(info.waits),
    }


def _latch_as_json(info: LatchInfo) -> dict[str, Any]:
    """Return the state of a latch. The masters know how many parties must arrive once one has."""
    return facts_of(info) | ({"parties": info.parties, "missing": info.missing} if info.arrived else {})


def _lines(info: State) -> list[tuple[str, str]]:
    """Return a line for each thing: its label and its text."""
    if isinstance(info, LatchInfo):
        return [("latch", info.name), ("state", in_words(info)), *(("arrived", party) for party in info.arrived)]
    lines = _semaphore_lines(info) if isinstance(info, SemaphoreInfo) else _lock_lines(info)
    count = f"{len(info.queue)} waiting" if info.queue else "nobody waits"
    waiters = zip(info.queue, info.waits, strict=True)
    said = (f"{place}. for {span(waits)}: {_named(owner)}" for place, (owner, waits) in enumerate(waiters, 1))
    return [*lines, ("queue", count), *(("", text) for text in said)]


def _named(owner: str) -> str:
    """Return an owner in words, and its name on the masters, which is in the logs."""
    words = described(owner)
    return owner if words == owner else f"{words} ({owner})"


def _lock_lines(info: LockInfo) -> list[tuple[str, str]]:
    token = "token" if info.held else "last token", str(info.token) if info.token is not None else "none"
    if info.readers:
        lines = [("lock", info.name)]
        for one in info.readers:
            lines.append(("reader", f"{_named(one.owner)}, hold count {one.hold_count}, {one.ttl:.3f} s left"))
            lines += [("", one.note)] if one.note else []
        return [*lines, token]
    lease = f"{info.ttl:.3f} s left" if math.isfinite(info.ttl) else "without an end"
    if info.resting:
        return [("lock", info.name), ("holder", in_words(info)), ("rests", f"for {info.ttl:.3f} s more"), token]
    holder = _named(info.owner) if info.owner else "another library's lock" if info.held else "nobody"
    lines = [("lock", info.name), ("holder", holder)]
    if info.note:
        lines.append(("note", info.note))
    if info.held_for is not None:
        lines.append(("held for", span(info.held_for)))
    if info.held:
        lines += [("hold count", str(info.hold_count)), ("lease", lease)]
    return [*lines, token]


def _semaphore_lines(info: SemaphoreInfo) -> list[tuple[str, str]]:
    limit = " or ".join(map(str, info.limits)) or "not known: nobody is there to name it"
    if info.override is not None:
        limit = (
            f"{info.override}, by an operator, in place of {limit}"
            if info.limits
            else f"{info.override}, by an operator"
        )
    lines = [("semaphore", info.name), ("limit", limit), ("used", str(info.used))]
    for holder in info.holders:
        what = f"{holder.permits} permits" if holder.slot is None else f"slot {holder.slot}"
        lines.append(("holder", f"{_named(holder.owner)}, {what}, {holder.ttl:.3f} s left"))
    return lines


def _rings(found: Found | None) -> Iterator[tuple[str, str]]:
    """Yield the rings, and the holders whose clients did not answer; nothing if there was no reason to ask."""
    if found is None:
        return
    for cycle in found.cycles:
        yield "deadlock", f"{len(cycle)} callers wait for each other"
        yield from (("", text) for text in texts_of(cycle))
    if found.problem:
        yield "deadlock", f"not known: {found.problem}"
    elif not found.cycles:
        not_all = f"not known: not every client has answered within {ANSWER_SECONDS:g} s"
        yield "deadlock", not_all if found.silent else "none"
    yield from (("no answer", owner) for owner in found.silent)
