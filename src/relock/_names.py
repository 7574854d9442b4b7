"""Names that are in use on the masters."""

from collections.abc import Generator, Iterable, Iterator
from typing import TypeVar

from relock._holding import quorum_error
from relock._keys import KINDS, glob_filter, is_queue, name_and_kind_of, scan_pattern
from relock._options import check_utf8, plain, wrong
from relock._runtime.masters.errors import NETWORK_ERRORS
from relock._runtime.session.session import Session

T = TypeVar("T")

NAMES_PER_SCAN = 500


def find_names(session: Session, pattern: str, kind: str | None) -> Iterator[tuple[str, str]]:
    """Check what `Client.names` was given; iterate over the names with their kinds, some of them several times.

    Raises:
        TypeError: the pattern is no str.
        ConfigurationError: the pattern has no UTF-8 form, or there is no such kind.
    """
    if not isinstance(pattern, str):
        raise TypeError(f"pattern must be a str, not {type(pattern).__name__}")
    check_utf8("pattern", pattern)
    if kind not in (None, *KINDS):
        raise wrong("kind", kind, f"{' or '.join(map(repr, KINDS))}, or None for all kinds")
    kinds = KINDS if kind is None else (kind,)
    return ((name, its_kind) for name, its_kind, _ in find_keys(session, plain(pattern)) if its_kind in kinds)


def find_keys(session: Session, pattern: str) -> Generator[tuple[str, str, bool], None, None]:
    """Yield for each key that shows a use its name and kind, and if it is the key of a queue; some of them twice.

    Raises:
        QuorumError: too few masters answered.
    """
    failures = []
    matches = glob_filter(pattern)
    for master in session.masters:
        session.check_open()
        try:
            for key in master.scan(scan_pattern(session.prefix, pattern), NAMES_PER_SCAN):
                found = name_and_kind_of(session.prefix, key)
                if found is not None and matches(found[0]):
                    yield (*found, is_queue(key))
        except NETWORK_ERRORS as error:
            failures.append(master.failed(error, sent=False))
    answered = len(session.masters) - len(failures)
    if answered < session.quorum:
        raise quorum_error(None, failures, session.quorum, answered)


def each_once(items: Iterable[T]) -> Generator[T, None, None]:
    """Yield each of the items when it first comes."""
    seen: set[T] = set()
    for item in items:
        if item not in seen:
            seen.add(item)
            yield item
