"""Channels of one virtual master: the part of its store that is about Pub/Sub, and about the slots of a Cluster."""

from attrs import Factory, define
from redis.crc import key_slot

from relock.testing._arguments import Argument, ReplyError, as_text

PLAIN, SHARDED = b"message", b"smessage"  # kinds of messages, by the words before them on the wire
OTHER_SLOT = "ERR Script attempted to access keys that do not hash to the same slot"
NOT_LOCAL = "ERR Script attempted to access a non local key in a cluster node"


@define
class Channels:
    """Channels of one master.

    Attributes:
        listeners: how many subscribers each channel has.
        shard_listeners: how many subscribers each sharded channel has.
        published: the messages that the master must deliver, each with its kind: those to channels with subscribers;
            if `is_replicated`, those to any channel.
        is_replicated: a replica follows, and may have subscribers of its own.
        slot: the slot of the keys of the script that runs on a node of a Cluster, which may use no others.
        is_leaving: that slot is moving to another node, which may have a key that is missing here.
    """

    listeners: dict[bytes, int] = Factory(dict)
    shard_listeners: dict[bytes, int] = Factory(dict)
    published: list[tuple[bytes, bytes, bytes]] = Factory(list)
    is_replicated: bool = False
    slot: int | None = None
    is_leaving: bool = False

    def check_slot(self, key: bytes) -> None:
        """Refuse a key, or a sharded channel, of another slot than that of the script's keys."""
        if self.slot is not None and key_slot(key) != self.slot:
            raise ReplyError(OTHER_SLOT)

    def publish(self, channel: bytes, message: Argument) -> int:
        """PUBLISH channel message."""
        return self._publish(PLAIN, self.listeners.get(channel, 0), channel, message)

    def spublish(self, channel: bytes, message: Argument) -> int:
        """SPUBLISH shardchannel message."""
        self.check_slot(channel)
        return self._publish(SHARDED, self.shard_listeners.get(channel, 0), channel, message)

    def _publish(self, kind: bytes, heard: int, channel: bytes, message: Argument) -> int:
        if heard or self.is_replicated:
            self.published.append((kind, channel, as_text(message)))
        return heard

    def pubsub(self, subcommand: bytes, *channels: bytes) -> tuple[bytes | int, ...]:
        """PUBSUB NUMSUB | SHARDNUMSUB channel [channel ...]."""
        listeners = self.shard_listeners if subcommand.upper() == b"SHARDNUMSUB" else self.listeners
        return tuple(part for channel in channels for part in (channel, listeners.get(channel, 0)))
