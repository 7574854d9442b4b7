"""Lifetime of a lock's keys after its writer has ended, while the owner reads on."""

from contextlib import closing

import pytest
import redis
from support.servers import Server

from relock import Client
from relock._keys import lock_keys


@pytest.mark.parametrize("way", ["release", "downgrade"])
def test_a_reader_that_was_the_writer_holds_others_up_no_longer_than_its_own_lease(server: Server, way: str) -> None:
    """The reader may die now, and nothing else would end the longer lease of the writer."""
    with Client(server.url) as client, closing(redis.Redis.from_url(server.url)) as raw:
        raw.flushall()
        writing, reading = client.lock("a", ttl=20), client.rwlock("a", ttl=5)
        writing.acquire()
        if way == "release":
            reading.read.acquire()
            writing.extend(25)
            writing.release()
        else:
            reading.write.downgrade()
        assert 0 < raw.pttl(lock_keys("lock", "a").lock) <= 5_001
        reading.read.release()
        assert not raw.exists(lock_keys("lock", "a").lock)
