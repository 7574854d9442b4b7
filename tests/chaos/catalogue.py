"""All kinds of fault: importing this has each module of faults enter its own."""

from chaos import faults, moves, outputs
from chaos.kinds import KINDS

__all__ = ["KINDS"]

MODULES = (faults, moves, outputs)
