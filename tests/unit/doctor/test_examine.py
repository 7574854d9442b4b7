"""Doctor: its trials, and its findings that only the comparison of several masters shows."""

from typing import Any

import pytest

from relock._doctor.findings import Examination, Finding, Verdict
from relock._doctor.scratch import Scratch
from relock._doctor.together import compare
from relock._scripts import script_names


def seen(number: int, **known: object) -> Examination:
    one = Examination(f"redis://host-{number}:6379/0", reachable=True, run_id=f"run-{number}")
    for field, value in known.items():
        setattr(one, field, value)
    return one


def found(*masters: Examination) -> dict[str, Finding]:
    return {finding.check: finding for finding in compare(masters)}


def test_every_script_is_tried() -> None:
    class FakeConnection:
        def send_packed_command(self, packed: list[bytes], check_health: bool) -> None:  # noqa: ARG002
            assert packed

        def read_response(self) -> list[bytes]:
            return [b"done"]

    raw: Any = FakeConnection()
    tried = [script for script, _, _ in Scratch(raw, "lock").steps()]
    assert sorted(tried) == script_names()


def test_one_master_is_not_compared() -> None:
    assert found(seen(1, clock_offset=(5.0, 5.1))) == {}


@pytest.mark.parametrize(("masters", "says"), [(2, "no failure"), (4, "1 failure, like 3"), (6, "2 failures")])
def test_an_even_number_says_what_it_tolerates(masters: int, says: str) -> None:
    number = found(*(seen(i) for i in range(masters)))["number"]
    assert says in number.says
    assert number.verdict is Verdict.NOTE


def test_an_odd_number_is_not_mentioned() -> None:
    assert "number" not in found(*(seen(i) for i in range(5)))


def test_one_server_under_three_names() -> None:
    twin = found(seen(1, run_id="same"), seen(2), seen(3, run_id="same"), seen(4, run_id="same"))["independent"]
    assert twin.verdict is Verdict.WRONG
    assert all(f"host-{i}" in twin.says for i in (1, 3, 4))
    assert "host-2" not in twin.says


def test_servers_that_do_not_say_who_they_are_are_told_apart_by_their_addresses() -> None:
    assert "independent" not in found(seen(1, run_id=""), seen(2, run_id=""))
    assert "independent" in found(seen(1, run_id=""), seen(1, run_id=""))


def test_clocks_that_agree() -> None:
    clocks = found(seen(1, clock_offset=(0.0, 0.001)), seen(2, clock_offset=(-0.001, 0.002)), seen(3))["clocks"]
    assert clocks.verdict is Verdict.OK
    assert "0.0020 s" in clocks.says  # no larger figure, whatever the delays were


def test_clocks_that_differ() -> None:
    clocks = found(
        seen(1, clock_offset=(0.0, 0.1)), seen(2, clock_offset=(-1.2, -1.1)), seen(3, clock_offset=(0.3, 0.4))
    )["clocks"]
    assert clocks.verdict is Verdict.NOTE
    assert "host-3" in clocks.says
    assert "host-2" in clocks.says
    assert "1.4" in clocks.says
    assert "NTP" in clocks.advice


def test_clocks_that_may_differ_because_the_network_is_slow_are_not_accused() -> None:
    clocks = found(seen(1, clock_offset=(-1.0, 1.0)), seen(2, clock_offset=(-1.0, 1.0)))["clocks"]
    assert clocks.verdict is Verdict.OK


def test_one_clock_alone_is_no_difference() -> None:
    assert "clocks" not in found(seen(1, clock_offset=(0.0, 0.1)), seen(2), seen(3))


def test_guards_that_differ_are_named() -> None:
    assert "guard" not in found(seen(1, guard=30.0), seen(2, guard=30.0), seen(3))
    guard = found(seen(1, guard=30.0), seen(2, guard=10.0), seen(3))["guard"]
    assert guard.verdict is Verdict.NOTE
    assert "10 s and 30 s" in guard.says
