-- Provides clock: this master's clock, seconds and microseconds as text. A script reads it
-- once: before Redis 7.2, two TIME calls of one script can differ.
local clock = redis.call('TIME')
