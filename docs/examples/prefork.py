"""A parent that holds a lock forks a child; the child starts with nothing."""

import os
import threading

from relock import Client

client = Client(os.environ.get("REDIS_URL", "redis://localhost:6379/0"))
lock = client.lock("reload")

with lock:
    print("the parent holds the lock", flush=True)
    child = os.fork()
    if child == 0:  # the same client object, and a fresh client all the same
        assert not lock.owned()
        assert not lock.acquire(timeout=0.2)
        print("child: not mine", flush=True)
        with lock:  # waits until the parent has left its block
            print("child: now it is mine", flush=True)
        os._exit(0)
    assert lock.owned()
    threading.Event().wait(1.0)

os.waitpid(child, 0)
client.close()
print("done")
