"""Names of owners in words."""

import pytest

from relock._owner import described, parts_of

CLIENT, UUID = "3245ee6291fec007", "da07fa4700000001"


@pytest.mark.parametrize(
    ("owner", "words"),
    [
        (f"web-1-4711-{CLIENT}:{UUID}@3000", "process 4711 on web-1"),
        (f"web-1-4711-{CLIENT}:job-7.x.{UUID}@3000~2.17", "process 4711 on web-1, owner='job-7.x'"),
        (f"web-4711-{CLIENT}.12:{UUID}#0/4@3000", "process 4711 on web"),
        (f"web-4711-{CLIENT}:{UUID}&", "process 4711 on web"),
        (f"web-4711-{CLIENT}:{UUID}@3000~1832f72900000001.1795793429253477", "process 4711 on web"),
        (f"web-4711-{CLIENT}:$job.{UUID}@3000", "process 4711 on web, owner='job'"),
        (f"billing-{CLIENT}:{UUID}", "client billing"),
        ("550e8400-e29b-11d4-a716-446655440000:31", "550e8400-e29b-11d4-a716-446655440000:31"),
        ("", ""),
    ],
)
def test_an_owner_is_a_process_of_a_host_or_a_client_and_what_owner_names(owner: str, words: str) -> None:
    assert described(owner) == words


@pytest.mark.parametrize(
    ("owner", "parts"),
    [
        (f"web-1-4711-{CLIENT}:{UUID}@3000", ("web-1", 4711, None, None)),
        (f"web-1-4711-{CLIENT}:job-7.x.{UUID}@3000~2.17", ("web-1", 4711, None, "job-7.x")),
        (f"billing-{CLIENT}:{UUID}", (None, None, "billing", None)),
        ("550e8400-e29b-11d4-a716-446655440000:31", None),
    ],
)
def test_the_parts_of_an_owners_name(owner: str, parts: object) -> None:
    assert parts_of(owner) == parts
