-- Provides on_own(command, key, ...): a command on a key, or nil where that holds
-- another type than relock gives it: somebody else has written it. Any other error,
-- such as a right that is missing, is the caller's to hear.
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
