-- Provides publish_counts, tell and count_listeners: every message to a client, and every
-- name of a channel, comes from here.
--
-- The pieces of `channel` say where a waiter listens: the piece of_waiter comes behind each line
-- that has read the uuid of one. The server's reply says how many clients received a message.
--
-- A server may refuse a message, because this user lacks the right to the command or the
-- channel, or because the server has no PUBLISH. A hold must end even then, so a refusal is
-- not an error of the script. Nor does it show that the waiter is dead, so that waiter is
-- not skipped. After a refusal, the script gives the lock to no waiter: it becomes the turn
-- of the first waiter that has a deadline, which learns of that with its next heartbeat.
--
-- Scripts whose usual case has no time to define functions include only the pieces.
--#piece counts
local publish_counts = true
--#end

-- Returns how many listen on the channel of each of these clients; an empty table if the server refuses to say.
local function count_listeners(prefix, name, clients)
  --#include channel counts
  local channels, counts = {}, {}
  for i = 1, #clients do
    channels[i] = head .. clients[i]
  end
  local reply = redis.pcall('PUBSUB', command, unpack(channels))
  for i = 1, #clients do
    counts[i] = reply[2 * i]
  end
  return counts
end

-- Returns how many clients have received the message; 0 if the server refuses it. Without a
-- message, returns how many would.
local function tell(prefix, name, client, message)
  if not message and publish_counts then
    local listeners = count_listeners(prefix, name, { client })[1]
    publish_counts = listeners ~= nil
    return listeners or 0
  elseif not message then
    return 0
  end
  --#piece heard
  --#include channel send
  if type(heard) ~= 'number' then
    publish_counts, heard = false, 0
  end
  --#end
  return heard
end
