"""`synchronized(..., skip=True)`: one look, and the function is not called if another owner has the lock."""

from typing import Any

import pytest

from contract.rigs.rig import Rig
from relock import AcquireTimeoutError, NotGranted, QuorumError
from relock._options import LockArguments

TAKEN = object()


def test_a_call_is_skipped_while_another_owner_has_the_lock(rig: Rig, name: str) -> None:
    client, ran = rig.client(), []

    @client.synchronized(name, skip=True, otherwise=TAKEN)
    def work(number: int, *, note: str = "") -> int:
        """Work."""
        ran.append((number, note))
        return number

    assert work.__doc__ == "Work."
    with rig.client().lock(name):
        assert [work(1), work(2, note="again")] == [TAKEN, TAKEN]
        assert rig.queued(name) == [0] * rig.masters
    assert not ran
    rig.until_free(name, "the other one")
    assert work(3, note="now") == 3
    assert ran == [(3, "now")]
    rig.until_free(name, "the call")


def test_a_call_is_skipped_beside_one_of_the_same_client(rig: Rig, name: str) -> None:
    """Overlapping runs of one process skip each other, too; each skip is told like any refused acquire."""
    told: list[Any] = []
    client = rig.client(on_event=told.append)
    work = client.synchronized(name, skip=True)(lambda: "worked")
    with client.lock(name, owner="another run"):
        assert work() is None
    rig.until(lambda: any(isinstance(event, NotGranted) for event in told), "the skip is told")


def test_the_owner_of_the_lock_is_not_skipped(rig: Rig, name: str) -> None:
    client = rig.client()
    work = client.synchronized(name, skip=True)(lambda: "worked")
    with client.lock(name):
        assert work() == "worked"
    rig.until_free(name, "both levels")


def test_an_error_of_the_function_is_no_skip_though_it_is_of_the_same_kind(rig: Rig, name: str) -> None:
    client = rig.client()

    @client.synchronized(name, skip=True)
    def work() -> None:
        raise AcquireTimeoutError("of the body", lock=name)

    with pytest.raises(AcquireTimeoutError, match="of the body"):
        work()
    rig.until_free(name, "the call")


@pytest.mark.parametrize("options", [{"fair": False}, {"ttl": 30.0}], ids=str)
def test_a_skip_goes_with_the_options_of_a_lock(rig: Rig, name: str, options: LockArguments) -> None:
    client = rig.client()
    work = client.synchronized(name, skip=True, otherwise=TAKEN, **options)(lambda: "worked")
    with rig.client().lock(name):
        assert work() is TAKEN
    rig.until_free(name, "the other one")
    assert work() == "worked"


def test_masters_that_do_not_answer_are_no_reason_to_skip(rig: Rig, name: str) -> None:
    """A skip says that another owner is at work, which nobody knows here."""
    client, ran = rig.client(node_timeout=0.1), []
    work = client.synchronized(name, skip=True)(lambda: ran.append(1))
    rig.go_silent()
    with pytest.raises(QuorumError):
        work()
    assert not ran
