-- Provides on_hash(command, key, ...): a command on a hash, or nil where the key
-- holds another type: that is some other library's lock. Any other error, such
-- as a right that is missing, is the caller's to hear.
local function on_hash(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then
    if string.find(tostring(reply.err), 'WRONGTYPE', 1, true) then
      return nil
    end
    return redis.call(command, key, ...)
  end
  return reply
end
