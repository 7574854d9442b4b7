"""The simulator: relock's own code under faults, on the virtual masters of its lab, and a referee that judges."""
