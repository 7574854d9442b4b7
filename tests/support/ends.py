"""The end of a test, which is not what the test is about."""

from relock._runtime.session.session import Session


def leave_to_leases(session: Session) -> None:
    """Have the next `close` of a session leave what is pending to its leases, and so take no time.

    Else it lasts until nothing that a test has lost or held back can arrive: a node timeout, which is long in tests.
    """
    janitor = session.janitor

    def forget() -> None:
        janitor._due.clear()
        janitor._checks.clear()

    janitor.call_after_steps(forget)
