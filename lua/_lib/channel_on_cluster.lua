-- Provides what `channel` provides, for a Cluster.
--
-- A waiter whose uuid begins with $ listens on the channel of its name, on the node that has
-- the slot. SPUBLISH counts exactly the clients that listen there. Any other waiter listens on
-- the channel of its client, on any node. PUBLISH reaches it, but counts the subscribers of one
-- node only. So publish_counts is about the waiter whose uuid was read last.
--
--#piece of_waiter
publish_counts = uuid ~= nil and string.byte(uuid) == 36 -- a $
--#end
--#piece counts
local command, head = 'SHARDNUMSUB', prefix .. '{' .. name .. '}:client:'
--#end
--#piece send
local heard
if publish_counts then
  heard = redis.pcall('SPUBLISH', prefix .. '{' .. name .. '}:client:' .. client, message)
else
  heard = redis.pcall('PUBLISH', prefix .. 'client:' .. client, message)
end
--#end
