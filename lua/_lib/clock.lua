-- Provides now_us: this master's clock, in microseconds.
-- Read once: before Redis 7.2 two TIME calls of one script can differ.
local clock = redis.call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
