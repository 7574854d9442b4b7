-- Provides now_us: this master's clock, in microseconds; and token_max, the largest
-- fencing token, which is a clock's time in the year 2223. A larger one was written by
-- another program. It counts as none, because no token could follow it.
local now_us = clock[1] * 1000000 + clock[2]
local token_max = 8e15 - 1
