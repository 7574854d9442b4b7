-- Provides now_us: this master's clock, in microseconds; and token_max, the largest
-- fencing token, which a clock reaches in the year 2223. Another program must have written
-- a larger one. It counts as no token, because no token could follow it.
local now_us = clock[1] * 1000000 + clock[2]
local token_max = 8e15 - 1
