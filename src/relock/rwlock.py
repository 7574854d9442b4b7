"""Read-write lock for threads: the classes that users call, with the docstrings that they read."""

from typing import Never

from relock._core.call_record import CallRecord
from relock._core.flows.inspect import LockInfo
from relock._core.lock_spec import LockSpec
from relock._core.readers import acquire_read, downgrade, release_read
from relock._options import ClientOptions
from relock._owner import Owner, as_reader
from relock.lock import Lock, LockClient


class ReadLock(Lock):
    """Lock of a reader: many readers may have it at the same time. It is the ``read`` of an `RWLock`.

    It has every member of `Lock`. Its hold has a lease of its own. A reader's `token` is above that of every earlier
    writer; between readers it means nothing, so a resource compares it with the largest token that *wrote*.
    """

    __slots__ = ()

    _acquiring = staticmethod(acquire_read)
    _releasing = staticmethod(release_read)

    def _who(self) -> Owner:
        return as_reader(super()._who())


class WriteLock(Lock):
    """Lock of a writer: the one of the same name that `Client.lock` makes. It is the ``write`` of an `RWLock`."""

    __slots__ = ("_reading",)

    def __init__(self, client: LockClient, spec: LockSpec, reading: LockSpec) -> None:
        super().__init__(client, spec, spec.keys.name)
        self._reading = reading

    def downgrade(self) -> None:
        """Change the caller's hold into that of a reader, without a moment in between. Other readers get in then.

        Each level becomes a level of the read lock, for ``read.release()`` to give back. After a `QuorumError` the
        caller has the lock as a writer still; after an interrupt, as a writer or as a reader.

        Raises:
            NotOwnedError: the caller does not have the lock as a writer.
            LockLostError: the hold was lost; the caller must still release it.
            QuorumError: too few masters answered for as long as the hold was valid.
            AcquireTimeoutError: masters that had forgotten the hold have let in another owner meanwhile.
            ClientClosedError: the client is closed.
        """
        record = CallRecord()
        session = self._client._session
        # See `Door.acquire` for why each `try` stands here, and why there are two.
        try:
            try:
                outcome = session.run(downgrade(session.calls, record, self._spec, self._reading, self._who()))
                if outcome is not None and not self._refusal(outcome):
                    raise self._timeout_error(outcome)
            except BaseException:
                session.interrupted.undo_acquire(record)
                raise
        except BaseException:
            session.interrupted.undo_acquire_again(record)
            raise
        if session.pending_warnings:
            session.raise_pending_warnings()


class RWLock:
    """Read-write lock for threads: many readers or one writer, in order of arrival. Made by `Client.rwlock`.

    Each side is a lock with every member of `Lock`. A caller that has the lock as a writer gets it as a reader at once,
    in whatever order it then gives the two back. A caller that has it only as a reader, and asks for it as a writer,
    gets an `UpgradeError` at once.

    Attributes:
        name: the name of the lock.
        read: the lock of a reader.
        write: the lock of a writer, which is `Client.lock` of the same name.
    """

    __slots__ = ("__weakref__", "name", "read", "write")

    name: str
    read: ReadLock
    write: WriteLock

    def __init__(self, client: LockClient, writing: LockSpec, options: ClientOptions) -> None:
        reading = writing.for_readers(options)
        self.name = writing.keys.name
        self.read = ReadLock(client, reading, self.name)
        self.write = WriteLock(client, writing, reading)

    def info(self) -> LockInfo:
        """Return the holders and the waiters of the lock, as `Client.info` does."""
        return self.write.info()

    def __repr__(self) -> str:
        """Show local state only: no I/O, and nothing secret."""
        return f"<relock.RWLock object name={self.name!r} read={self.read!r} write={self.write!r}>"

    def __reduce__(self) -> Never:
        raise TypeError("an RWLock can't be pickled: make one of a client in each process")
