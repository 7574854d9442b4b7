"""The benchmark: what a lock costs, as ratios taken in one run."""
