-- Provides what `tell` provides, for a Cluster: there, this fragment takes the place of that one.
--
-- A waiter whose uuid begins with $ listens on the channel of its name, on the node that has
-- the slot. SPUBLISH counts exactly the clients that listen there. Any other waiter listens on the channel
-- of its client, on any node. PUBLISH reaches it, but counts the subscribers of one node only.
-- So publish_counts is about the waiter that was read last: see channel_of_on_cluster.
--#piece counts
local publish_counts = true
--#end

-- Returns how many listen for each of these clients on the channel of this name.
local function count_listeners(prefix, name, clients)
  local channels, counts = {}, {}
  for i = 1, #clients do
    channels[i] = prefix .. '{' .. name .. '}:client:' .. clients[i]
  end
  local reply = redis.pcall('PUBSUB', 'SHARDNUMSUB', unpack(channels))
  for i = 1, #clients do
    counts[i] = reply[2 * i]
  end
  return counts
end

local function tell(prefix, name, client, message)
  if not message and publish_counts then
    local listeners = count_listeners(prefix, name, { client })[1]
    publish_counts = listeners ~= nil
    return listeners or 0
  elseif not message then
    return 0
  end
  --#piece heard
  local heard
  if publish_counts then
    heard = redis.pcall('SPUBLISH', prefix .. '{' .. name .. '}:client:' .. client, message)
  else
    heard = redis.pcall('PUBLISH', prefix .. 'client:' .. client, message)
  end
  if type(heard) ~= 'number' then
    publish_counts, heard = false, 0
  end
  --#end
  return heard
end
