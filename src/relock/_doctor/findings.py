"""Findings about each master, and how bad each is."""

from enum import StrEnum

from attrs import define, field, frozen

CLOCK_OFFSET_SECONDS_MAX = 1.0  # clocks that differ by more get a note


class Verdict(StrEnum):
    """Severity of a finding. Only *wrong* makes doctor fail; a *note* is good to know, and perhaps to change."""

    OK = "ok"
    NOTE = "note"
    WRONG = "wrong"


@frozen
class Finding:
    """One thing that was looked at.

    Attributes:
        check: what was looked at, in a word or two.
        says: what was found.
        advice: what to do about it; empty where there is nothing to do.
    """

    check: str
    verdict: Verdict
    says: str
    advice: str = ""


@define
class Examination:
    """The facts that were found out about one master.

    Attributes:
        run_id: the id of the server process; empty if INFO is refused.
        incarnation: the name that scripts compare with the marker; empty if INFO is refused.
        clock_offset: bounds (s) on its clock minus this machine's wall clock.
        guard: for how long (s) it has no vote after a restart, by its marker; None without a marker.
        guard_set_by: the client that has set this guard; empty if not known.
        guard_set_at: when that client has set it (s since 1970, on the master's clock); None if not known.
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
    guard_set_by: str = ""
    guard_set_at: float | None = None
    vote_in: float | None = None
    slots: int | None = None
    findings: list[Finding] = field(factory=list)

    def add(self, check: str, verdict: Verdict, says: str, advice: str = "") -> None:
        """Add one more finding."""
        self.findings.append(Finding(check, verdict, says, advice))
