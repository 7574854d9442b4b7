"""Locks that lack a safety check: the nemesis must find each broken, else its finding relock sound proves nothing."""

import os

import pytest

from chaos.controls import CONTROLS, is_found, run_control

pytestmark = pytest.mark.skipif(
    not os.environ.get("RELOCK_CHAOS_SECONDS"), reason="needs RELOCK_CHAOS_SECONDS, such as 30"
)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", [name for name, control in CONTROLS.items() if not control.is_rare])
def test_a_lock_without_this_guard_is_reported_as_broken(name: str, seed: int) -> None:
    finding = run_control(name, str(seed))
    assert is_found(name, finding), f"seed {seed}: the control is found broken"
