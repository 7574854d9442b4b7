"""Flows, one module per primitive: generators that decide over time, as `relock._core.effects` describes."""
