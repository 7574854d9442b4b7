"""The nemesis finds a lock broken that has a guard taken out: else that it finds nothing would mean nothing."""

import os

import pytest

from chaos.controls import CONTROLS, run_control

pytestmark = pytest.mark.skipif(
    not os.environ.get("RELOCK_CHAOS_SECONDS"), reason="needs RELOCK_CHAOS_SECONDS, such as 30"
)

ALONE = {"intervals"}  # what each of them breaks is exclusion, and the sweep alone shows that


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", CONTROLS)
def test_a_lock_without_this_guard_is_reported_as_broken(name: str, seed: int) -> None:
    finding = run_control(name, str(seed))
    assert {violation.check for violation in finding.violations} >= ALONE, f"seed {seed}: it was not noticed"
