-- Provides on_own(command, key, ...): runs a command on a key. Returns nil if the key has
-- another type than relock's keys of this name: another program has written it. Raises any
-- other error, such as a missing right.
local function on_own(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then
    if string.find(tostring(reply.err), 'WRONGTYPE', 1, true) then
      return nil
    end
    return redis.call(command, key, ...)
  end
  return reply
end
