-- Tries the commands that a service may refuse in scripts, and changes nothing. It is no script
-- with a header: a client sends it by EVAL, without keys, on its first connection to a master. The
-- argument is a channel like those of the clients, which no client has; without it, no message is tried.
-- Returns an array: the name of each refused command, and behind it the server's words.
local refused = {}
for _, command in ipairs({ { 'TIME' }, { 'INFO', 'replication' }, ARGV[1] and { 'PUBLISH', ARGV[1], '' } }) do
  local reply = redis.pcall(unpack(command))
  if type(reply) == 'table' and reply.err then
    refused[#refused + 1] = command[1]
    refused[#refused + 1] = reply.err
  end
end
return refused
