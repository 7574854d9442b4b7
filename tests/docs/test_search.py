"""Words that readers look for are in a title, or among the terms of the index, where the search ranks them first."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
TITLE = re.compile(r"\A# (.+)", re.MULTILINE)
TERMS = re.compile(r"^```\{index\} (.+)", re.MULTILINE)
FIRST_HOUR = [  # what newcomers ask, in their words
    ("install", "tutorial"),
    ("crash", "how-to/choosing-options"),
    ("ttl", "how-to/choosing-options"),
    ("wait at most", "how-to/choosing-options"),
    ("skip if locked", "how-to/skipping"),
    ("asyncio", "how-to/event-loops"),
    ("one server or several", "how-to/several-masters"),
    ("fair", "concepts/fairness"),
    ("restart of redis", "how-to/one-master-and-restarts"),
    ("who holds", "how-to/command-line"),
    ("redis-py", "how-to/migrating-from-redis-py"),
    ("test without redis", "how-to/testing"),
]


def titles_and_terms(page: Path) -> str:
    """Return the title of a page, and the terms by which its index finds it."""
    text = page.read_text()
    return "\n".join([*TITLE.findall(text), *TERMS.findall(text)]).lower()


@pytest.mark.parametrize(
    ("word", "page"),
    [
        ("skip if locked", "recipes/celery"),
        ("skip if locked", "recipes/schedulers"),
        ("celery", "recipes/celery"),
        ("django", "recipes/django"),
        ("fastapi", "recipes/fastapi"),
        ("apscheduler", "recipes/schedulers"),
        ("cron", "recipes/schedulers"),
        ("kubernetes", "recipes/kubernetes"),
        ("gunicorn", "recipes/gunicorn"),
        ("leader", "how-to/election"),
        ("metrics", "how-to/metrics"),
        ("semaphore", "how-to/semaphore"),
        ("at most n at a time", "how-to/semaphore"),
        ("deadlock", "how-to/deadlocks"),
        ("barrier", "how-to/latch"),
        ("two locks", "how-to/several-locks"),
        ("readers and writers", "how-to/read-write-lock"),
        ("redlock", "how-to/migrating-from-pottery"),
        ("redlock safe", "concepts/is-redlock-safe"),
        ("kleppmann", "concepts/is-redlock-safe"),
        ("redis-py", "how-to/migrating-from-redis-py"),
        ("python-redis-lock", "how-to/migrating-from-python-redis-lock"),
        ("redisson", "how-to/migrating-from-redisson"),
        *FIRST_HOUR,
    ],
)
def test_a_word_leads_to_its_page(word: str, page: str) -> None:
    assert word in titles_and_terms(DOCS / f"{page}.md")


def test_a_first_hour_answers_each_question_with_an_example_and_a_link_and_is_on_the_start_page() -> None:
    assert "(first-hour.md)" in (DOCS / "index.md").read_text()
    _, *answers = (DOCS / "first-hour.md").read_text().split("\n## ")
    assert len(answers) == len(FIRST_HOUR)
    for answer, (_, page) in zip(answers, FIRST_HOUR, strict=True):
        question, _, rest = answer.partition("\n")
        assert question.endswith("?")
        assert "```python\n" in rest, question
        assert f"({page}.md" in rest.partition("\nMore: ")[2], question


def test_each_recipe_says_what_happens_on_a_crash_a_loss_and_a_deploy() -> None:
    recipes = sorted((DOCS / "recipes").glob("*.md"))
    assert recipes
    for recipe in recipes:
        told = re.findall(r"^\*\*(Crash|Loss|Deploy)\.\*\*", recipe.read_text(), re.MULTILINE)
        assert told == ["Crash", "Loss", "Deploy"], recipe.name


def test_each_page_is_in_the_table_of_contents() -> None:
    listed = set(re.findall(r"^[\w-]+(?:/[\w-]+)*$", (DOCS / "index.md").read_text(), re.MULTILINE))
    for folder in ("recipes", "how-to"):
        for page in (DOCS / folder).glob("*.md"):
            assert f"{folder}/{page.stem}" in listed
