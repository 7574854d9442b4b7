"""How the network of a virtual world is: how long messages take, and which of them are lost or come twice."""

from attrs import define


@define
class Conditions:
    """How the network is, as chances and seconds.

    Attributes:
        delay: seconds that a message takes on average.
        straggles: the part of the messages that take much longer,
        straggle: up to so many seconds.
        cuts: the part of the messages with which their connection breaks.
        drops: the part of the published messages that are lost.
        lags: the part of the published messages that take much longer, as those that straggle.
        repeats: the part of the scripts, and of the published messages, that arrive twice;
        repeated_after: how many seconds later; it is drawn from these.
    """

    delay: float = 0.0003
    straggles: float = 0.0
    straggle: float = 0.0
    cuts: float = 0.0
    drops: float = 0.0
    lags: float = 0.0
    repeats: float = 0.0
    repeated_after: tuple[float, ...] = (0.0,)
