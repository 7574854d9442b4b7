"""The flows: one module per primitive, generators that decide over time (see `relock._core.effects`)."""
