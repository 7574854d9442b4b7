"""The benchmark of hand-offs: from `release` being called in one worker to `acquire` returning in the next."""
