"""A listener to masters that notes their news without any action."""

from relock._core.master_facts import MasterFacts, News
from relock._runtime.masters.opener import MasterListener


class NewsListener(MasterListener):
    """Listener that notes the news, and when connections must be looked at."""

    connection_name = ""

    def __init__(self) -> None:
        self.heard: list[tuple[MasterFacts, News]] = []
        self.moments: list[float] = []

    @property
    def news(self) -> list[News]:
        return [news for _, news in self.heard]

    def hear(self, facts: MasterFacts, news: News) -> None:
        self.heard.append((facts, news))

    def sweep_by(self, moment: float) -> None:
        self.moments.append(moment)
