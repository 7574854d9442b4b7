"""The drivers that the tests of the contract run on, and what the tests say in common."""
