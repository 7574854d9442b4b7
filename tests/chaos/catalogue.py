"""All kinds of fault: the import of this module makes each module of faults enter its own."""

from chaos import faults, loops, moves, outputs
from chaos.kinds import KINDS

__all__ = ["KINDS"]

MODULES = (faults, loops, moves, outputs)
