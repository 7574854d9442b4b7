"""The bare floor: figures of bare sockets with the smallest correct scripts, which no lock library can beat.

It is measured beside relock, by ``relock bench`` and by the developers' benchmark, and **never changed with relock**:
published ratios could not be compared any more. The floor renews nothing, keeps no token, forgets waiters that died,
and loses its locks with its master's memory.
"""
