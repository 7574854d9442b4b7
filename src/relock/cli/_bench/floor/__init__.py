"""The bare floor: what sockets and the smallest scripts that are right reach, which no lock library can beat.

It is measured beside relock, by ``relock bench`` and by the developers' benchmark, and **never changed with relock**:
published ratios could not be compared any more. It renews nothing, keeps no token, forgets waiters that died, and loses
its locks with its master's memory.
"""
