-- Provides has_vote: true in the usual case that this master surely has a vote. For that
-- the whole marker must be as expected. And either a vote was written on the caller's
-- socket just now, or the server still has the incarnation that the socket was opened to.
-- If has_vote is false, no_vote_until must decide. A `!` in the caller's incarnation says that
-- the service refuses INFO in scripts: then the marker alone must be as expected. A `=` says
-- that the marker may name any incarnation.
--
-- This fragment reads master, incarnation, guard_ms and now. It is not a function, because
-- defining one would take a good part of the script's time.
local has_vote = not master
if master then
  local marker = redis.call('HMGET', master, 'incarnation', 'no_vote_until_us', 'guard_ms')
  local known, until_us = marker[1], tonumber(marker[2])
  has_vote = known and (#known + 17 == #incarnation and string.find(incarnation, known, 1, true) == 1
    or string.byte(incarnation, -17) == 61) -- a =
    and (marker[3] == guard_ms or '+' .. (marker[3] or '') == guard_ms) and until_us and now - until_us >= 0
  local quiet_us = now - string.sub(incarnation, -16)
  if has_vote and (quiet_us < 0 or quiet_us > just_now_us) and string.byte(incarnation, -17) == 63 then -- a ?
    local info = redis.call('INFO', 'replication')
    local id = string.match(info, 'master_replid:(%x+)')
    has_vote = string.find(info, 'role:master', 1, true) and id and string.sub(known, -#id - 1) == ':' .. id
  end
end
