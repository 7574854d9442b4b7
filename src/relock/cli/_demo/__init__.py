"""The parts of ``relock demo``: a server, a ledger without locking, workers, what they told, and the verdict."""
