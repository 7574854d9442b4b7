"""Words that readers look for are in a title, or among the terms of the index, where the search ranks them first."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
TITLE = re.compile(r"\A# (.+)", re.MULTILINE)
TERMS = re.compile(r"^```\{index\} (.+)", re.MULTILINE)


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
        ("redis-py", "how-to/migrating-from-redis-py"),
        ("python-redis-lock", "how-to/migrating-from-python-redis-lock"),
        ("redisson", "how-to/migrating-from-redisson"),
    ],
)
def test_a_word_leads_to_its_page(word: str, page: str) -> None:
    assert word in titles_and_terms(DOCS / f"{page}.md")


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
