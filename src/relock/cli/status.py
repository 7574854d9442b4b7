"""``relock status``: the holders of a lock or a semaphore and their waiters, or the parties at a latch."""

import math
from collections.abc import Iterator
from typing import Any

import click

from relock import LatchInfo, LockInfo, SemaphoreInfo
from relock._core.deadlocks import texts_of
from relock._options import LIMIT_MAX
from relock._rings import ANSWER_SECONDS, Found, find_rings
from relock.cli._nodes import Where, json_option, node_options
from relock.cli._output import print_json, printable

# `python -OO` would drop a docstring.
HELP = """Show the holder of the lock NAME, or its readers, and its waiters, as a quorum of the masters agree on them.

With --semaphore, NAME is a semaphore: show its limit, its holders and its waiters. The masters do not store the limit:
it is that of the holders and waiters, unless an operator has set another one.

With --latch, NAME is a latch: show which parties have arrived, and how many are missing.

The times are seconds. A lock of another library has no owner that relock can name.

If callers wait for the lock, the clients of its holders are asked for what these wait, and so on: a ring of callers
that wait for each other is shown. A client that does not answer within 5 s is named.
"""


@click.command(help=HELP)
@click.argument("name")
@click.option("--semaphore", is_flag=True, help="NAME is a semaphore, not a lock.")
@click.option("--latch", is_flag=True, help="NAME is a latch, not a lock.")
@node_options
@json_option
def status(name: str, semaphore: bool, latch: bool, where: Where, as_json: bool) -> None:
    """Print the holders and the waiters."""
    if semaphore and latch:
        raise click.UsageError("--semaphore and --latch exclude each other")
    with where.client() as client:
        if latch:
            _show_latch(client.latch(name, LIMIT_MAX).info(), as_json)
            return
        info = client.semaphore(name, LIMIT_MAX).info() if semaphore else client.info(name)
        is_ring_possible = isinstance(info, LockInfo) and info.queue and info.holders
        found = find_rings(client._session, name) if is_ring_possible else None
        if isinstance(info, LockInfo) and found:
            info = client.info(name)  # the questions may have taken seconds
    if as_json:
        print_json(_semaphore_as_json(info) if isinstance(info, SemaphoreInfo) else _as_json(info, found))
    else:
        lines = _semaphore_lines(info) if isinstance(info, SemaphoreInfo) else _lines(info)
        lines += [*_queue(info.queue), *_rings(found)]
        click.echo("\n".join(f"{label:<12}{printable(text)}" for label, text in lines))


def _as_json(info: LockInfo, found: Found | None) -> dict[str, Any]:
    cycles, silent, problem = found or Found((), ())
    rings = [[{"lock": lock, "waiter": waiter, "holder": holder} for lock, waiter, holder in one] for one in cycles]
    return {
        "name": info.name,
        "kind": info.kind,
        "held": info.held,
        "owner": info.owner,
        "hold_count": info.hold_count,
        "lease_left_seconds": info.ttl if math.isfinite(info.ttl) else None,  # JSON knows no infinity
        "token": info.token,
        "readers": [
            {"owner": reader.owner, "hold_count": reader.hold_count, "lease_left_seconds": reader.ttl}
            for reader in info.readers
        ],
        "queue": list(info.queue),
        "deadlocks": None if problem else rings,
        "silent": list(silent),
    }


def _semaphore_as_json(info: SemaphoreInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "kind": info.kind,
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
        "queue": list(info.queue),
    }


def _show_latch(info: LatchInfo, as_json: bool) -> None:
    """Print the state of a latch. The masters know how many parties must arrive once one has."""
    if as_json:
        parties = {"parties": info.parties, "arrived": list(info.arrived), "missing": info.missing}
        print_json({"name": info.name, "kind": info.kind, **(parties if info.arrived else {"arrived": []})})
        return
    said = f"{info.missing} of {info.parties} are missing" if info.arrived else "nobody has arrived"
    lines = [("latch", info.name), ("state", "open" if info.missing == 0 else f"closed: {said}")]
    lines += [("arrived", party) for party in info.arrived]
    click.echo("\n".join(f"{label:<12}{printable(text)}" for label, text in lines))


def _lines(info: LockInfo) -> list[tuple[str, str]]:
    """Return a line for each thing: its label and its text."""
    token = "token" if info.held else "last token", str(info.token) if info.token is not None else "none"
    if info.readers:
        said = [f"{one.owner}, hold count {one.hold_count}, {one.ttl:.3f} s left" for one in info.readers]
        return [("lock", info.name), *(("reader", reader) for reader in said), token]
    lease = f"{info.ttl:.3f} s left" if math.isfinite(info.ttl) else "without an end"
    holder = info.owner or ("another library's lock" if info.held else "nobody")
    lines = [("lock", info.name), ("holder", holder)]
    if info.held:
        lines += [("hold count", str(info.hold_count)), ("lease", lease)]
    return [*lines, token]


def _semaphore_lines(info: SemaphoreInfo) -> list[tuple[str, str]]:
    """Return a line for each thing: its label and its text."""
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
        lines.append(("holder", f"{holder.owner}, {what}, {holder.ttl:.3f} s left"))
    return lines


def _queue(queue: tuple[str, ...]) -> list[tuple[str, str]]:
    count = f"{len(queue)} waiting" if queue else "nobody waits"
    return [("queue", count), *(("", f"{place}. {waiter}") for place, waiter in enumerate(queue, 1))]


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
