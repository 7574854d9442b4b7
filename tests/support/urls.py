"""Where masters listen, for those who only connect to them: nothing of relock is imported, whichever version runs."""

from collections.abc import Iterable
from typing import Any

GUARD_SECONDS = 600.0  # of the masters that have been looked at: no shorter than any ttl in the tests


class Urls(list[str]):
    """Where the masters listen, and the restart guard (s) in use there, or None when nobody has looked at them yet."""

    def __init__(self, urls: Iterable[str], guard: float | None) -> None:
        super().__init__(urls)
        self.guard = guard

    @property
    def word(self) -> str:
        """All in one word, for a command line."""
        return " ".join(self)


def urls_of(word: str) -> str | Urls:
    """One URL, or those of a group of masters that have been looked at, from a command line."""
    urls = word.split()
    return urls[0] if len(urls) == 1 else Urls(urls, GUARD_SECONDS)


def options_for(urls: object, options: dict[str, Any]) -> dict[str, Any]:
    """The options of a client of `urls`: with the guard that is in use there, unless it has its own."""
    guard = urls.guard if isinstance(urls, Urls) else None
    return options if guard is None else {"restart_guard": guard, **options}
