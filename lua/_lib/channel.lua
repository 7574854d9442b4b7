-- Provides the pieces that say where a waiter listens: here, on the channel of its client. On a
-- Cluster, channel_on_cluster takes the place of this fragment.
--
--#piece of_waiter
-- All waiters listen on the same kind of channel.
--#end
--#piece counts
local command, head = 'NUMSUB', prefix .. 'client:'
--#end
--#piece send
local heard = redis.pcall('PUBLISH', prefix .. 'client:' .. client, message)
--#end
