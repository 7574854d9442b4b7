-- Provides publish_counts, tell and count_listeners: every message to a client, and every
-- name of a channel, comes from here.
--
-- Each client listens on one channel. PUBLISH says how many clients received a message. A
-- cluster counts the subscribers of one node only: the next line is then sent with false.
--
-- A server may refuse a message, because this user lacks the right or the channel, or
-- because the server has no PUBLISH. The end of a hold must not hang on a message, so a
-- refusal is no error of the script. It says nothing about the waiter either, so the waiter
-- is not passed over as dead. From a refusal on, PUBLISH counts nobody in this script: it
-- gives the lock to nobody, and it is the turn of the first waiter that has a deadline.
-- That waiter learns of its turn with its next heartbeat.
--
-- A script that may define no function, because that takes a good part of the time, includes
-- the pieces alone.
--#piece counts
local publish_counts = true
--#end

-- Returns how many clients have received the message, as far as the server says.
local function tell(prefix, client, message)
  --#piece heard
  local heard = redis.pcall('PUBLISH', prefix .. 'client:' .. client, message)
  if type(heard) ~= 'number' then
    publish_counts, heard = false, 0
  end
  --#end
  return heard
end

-- Returns how many listen to the channel of each of these clients; an empty table if the server refuses to say.
local function count_listeners(prefix, clients)
  local channels, counts = {}, {}
  for i = 1, #clients do
    channels[i] = prefix .. 'client:' .. clients[i]
  end
  local reply = redis.pcall('PUBSUB', 'NUMSUB', unpack(channels))
  for i = 1, #clients do
    counts[i] = reply[2 * i]
  end
  return counts
end
