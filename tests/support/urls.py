"""URLs of masters, for code that only connects to them. This module does not import relock: any version may run."""

from collections.abc import Iterable
from typing import Any

GUARD_SECONDS = 600.0  # of the masters that relock has looked at: no shorter than any ttl in the tests


class Urls(list[str]):
    """URLs of the masters, and the restart guard (s) in use there; None if relock has not looked at them yet."""

    def __init__(self, urls: Iterable[str], guard: float | None) -> None:
        super().__init__(urls)
        self.guard = guard

    @property
    def word(self) -> str:
        """Return all URLs in one word, for a command line."""
        return " ".join(self)


def urls_of(word: str) -> str | Urls:
    """Return one URL, or those of a group of masters that relock has looked at, from a command line."""
    urls = word.split()
    return urls[0] if len(urls) == 1 else Urls(urls, GUARD_SECONDS)


def options_for(urls: object, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a client of `urls`: with the guard that is in use there, unless the client names one."""
    guard = urls.guard if isinstance(urls, Urls) else None
    return options if guard is None else {"restart_guard": guard, **options}
