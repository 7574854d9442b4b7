-- Provides clock: what this master's clock says, seconds and microseconds as text. Read
-- once: before Redis 7.2 two TIME calls of one script can differ.
local clock = redis.call('TIME')
