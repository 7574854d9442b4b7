"""The drivers that the tests of the contract run on, and the helpers that these tests share."""
