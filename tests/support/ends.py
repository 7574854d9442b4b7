"""The end of a test that is not about ends."""

from relock._runtime.session.session import Session


def leave_to_leases(session: Session) -> None:
    """Let the next `close` of a session leave pending undos to their leases, so that it takes no time.

    Otherwise it lasts until no lost or held request of the test can arrive: a node timeout, which is long in tests.
    """
    janitor = session.janitor

    def forget() -> None:
        janitor._due.clear()
        janitor._checks.clear()

    janitor.call_after_steps(forget)
