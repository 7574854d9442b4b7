"""Read-write lock for tasks: the classes that users call, with the docstrings that they read."""

from collections.abc import Coroutine
from typing import Any, Never

from relock._core.call_record import CallRecord, OvertakenError
from relock._core.flows.inspect import LockInfo
from relock._core.lock_spec import LockSpec
from relock._core.readers import acquire_read, downgrade, release_read
from relock._options import ClientOptions
from relock._owner import Owner, as_reader
from relock.aio_lock import AsyncLock, AsyncLockClient, AwaitedCall


class AsyncReadLock(AsyncLock):
    """Lock of a reader: many readers may have it at the same time. It is the ``read`` of an `AsyncRWLock`.

    It has every member of `AsyncLock`. Its hold has a lease of its own. A reader's `token` is above that of every
    earlier writer; between readers it means nothing, so a resource compares it with the largest token that *wrote*.
    """

    __slots__ = ()

    _acquiring = staticmethod(acquire_read)
    _releasing = staticmethod(release_read)

    def _who(self) -> Owner:
        return as_reader(super()._who())


class AsyncWriteLock(AsyncLock):
    """Lock of a writer: the one of the same name that `AsyncClient.lock` makes. It is ``write`` of an `AsyncRWLock`."""

    __slots__ = ("_reading",)

    def __init__(self, client: AsyncLockClient, spec: LockSpec, reading: LockSpec, *, cancel_on_lost: bool) -> None:
        super().__init__(client, spec, cancel_on_lost=cancel_on_lost)
        self._reading = reading

    def downgrade(self) -> Coroutine[Any, Any, None]:
        """Change the caller's hold into that of a reader, without a moment in between. Other readers get in then.

        Each level becomes a level of the read lock, for ``read.release()`` to give back. After a `QuorumError` the
        caller has the lock as a writer still; after a cancellation, as a writer or as a reader.

        Raises:
            NotOwnedError: the caller does not have the lock as a writer.
            LockLostError: the hold was lost; the caller must still release it.
            QuorumError: too few masters answered for as long as the hold was valid.
            AcquireTimeoutError: masters that had forgotten the hold have let in another owner meanwhile.
            RuntimeError: it is called outside a task, without ``owner=``.
            ClientClosedError: the client is closed.
        """
        return AwaitedCall(self._downgrade(self._who()))

    async def _downgrade(self, who: Owner) -> None:
        foreground = self._client._foreground()
        record, session = CallRecord(), foreground.session
        try:
            outcome = await foreground.run(downgrade(foreground.calls, record, self._spec, self._reading, who), record)
            if outcome is not None and not self._refusal(outcome):
                raise self._timeout_error(outcome)
        except OvertakenError:
            await self._downgrade(who)
        except BaseException:
            if not record.is_overtaken:
                session.interrupted_of_tasks.undo_acquire(record)
            raise
        if session.pending_warnings:
            session.raise_pending_warnings()


class AsyncRWLock:
    """Read-write lock for tasks: many readers or one writer, in order of arrival. Made by `AsyncClient.rwlock`.

    Each side is a lock with every member of `AsyncLock`. A caller that has the lock as a writer gets it as a reader at
    once, in whatever order it then gives the two back. A caller that has it only as a reader, and asks for it as a
    writer, gets an `UpgradeError` at once.

    Attributes:
        name: the name of the lock.
        read: the lock of a reader.
        write: the lock of a writer, which is `AsyncClient.lock` of the same name.
    """

    __slots__ = ("__weakref__", "name", "read", "write")

    name: str
    read: AsyncReadLock
    write: AsyncWriteLock

    def __init__(
        self, client: AsyncLockClient, writing: LockSpec, options: ClientOptions, *, cancel_on_lost: bool
    ) -> None:
        reading = writing.for_readers(options)
        self.name = writing.keys.name
        self.read = AsyncReadLock(client, reading, cancel_on_lost=cancel_on_lost)
        self.write = AsyncWriteLock(client, writing, reading, cancel_on_lost=cancel_on_lost)

    async def info(self) -> LockInfo:
        """Return the holders and the waiters of the lock, as `AsyncClient.info` does."""
        return await self.write.info()

    def __repr__(self) -> str:
        """Show local state only: no I/O, and nothing secret."""
        return f"<relock.AsyncRWLock object name={self.name!r} read={self.read!r} write={self.write!r}>"

    def __reduce__(self) -> Never:
        raise TypeError("an AsyncRWLock can't be pickled: make one of a client in each process")
