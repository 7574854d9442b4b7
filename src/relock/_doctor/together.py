"""Findings that only a look at all masters together shows."""

import itertools
from collections.abc import Iterator, Sequence

from relock._core.info import one_server, shared_servers
from relock._doctor.findings import CLOCK_OFFSET_SECONDS_MAX, Examination, Finding, Verdict
from relock._runtime.net.parse import warning_of_number


def compare(examinations: Sequence[Examination]) -> list[Finding]:
    """Return the findings that only a look at all masters together shows."""
    if len(examinations) == 1 or any(one.slots is not None for one in examinations):
        return []  # the nodes of a cluster are one master
    number = warning_of_number(len(examinations))
    findings = [] if number is None else [Finding("number", Verdict.NOTE, number)]
    return [*findings, *_same_servers(examinations), *_clocks(examinations), *_guards(examinations)]


def _same_servers(examinations: Sequence[Examination]) -> Iterator[Finding]:
    for addresses in shared_servers((one.address, one.run_id or one.address) for one in examinations):
        yield Finding("independent", Verdict.WRONG, *one_server(addresses).split(": "))


def _clocks(examinations: Sequence[Examination]) -> Iterator[Finding]:
    """Judge how far the masters' clocks are apart: by bounds, because a reply takes its time."""
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
