"""The network of a virtual world: how long messages take, and which of them are lost or arrive twice."""

from attrs import define


@define
class Conditions:
    """Conditions of the network. A part is a number from 0 to 1.

    Attributes:
        delay: seconds that a message takes on average.
        straggles: the part of the messages that take much longer.
        straggle: seconds that these take longer, at most.
        cuts: the part of the messages with which their connection breaks.
        drops: the part of the published messages that are lost.
        lags: the part of the published messages that take much longer, by `straggle` at most.
        repeats: the part of the scripts, and of the published messages, that arrive twice.
        repeated_after: seconds between the two arrivals; chance chooses one of these.
    """

    delay: float = 0.0003
    straggles: float = 0.0
    straggle: float = 0.0
    cuts: float = 0.0
    drops: float = 0.0
    lags: float = 0.0
    repeats: float = 0.0
    repeated_after: tuple[float, ...] = (0.0,)
