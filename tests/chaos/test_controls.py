"""Locks that lack a safety check: the nemesis must find each broken, else its finding relock sound proves nothing."""

import os

import pytest

from chaos.controls import CONTROLS, is_found, run_control

pytestmark = pytest.mark.skipif(
    not os.environ.get("RELOCK_CHAOS_SECONDS"), reason="needs RELOCK_CHAOS_SECONDS, such as 30"
)
# Others lack the same guard; the long run plays these, too.
LEFT_OUT = {"no restart guard, one master", "no restart guard, failing back", "no restart guard, failover with lag"}
USUAL = [name for name, control in CONTROLS.items() if not control.is_rare and name not in LEFT_OUT]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", USUAL)
def test_a_lock_without_this_guard_is_reported_as_broken(name: str, seed: int) -> None:
    finding = run_control(name, str(seed))
    assert is_found(name, finding), f"seed {seed}: the control is found broken"
