-- Provides is_handed: true if the first waiter has the lock now. This is the usual case of
-- hand_over: the lock is free, no waiter is overdue, and the first one listens and takes
-- grants. The writes and the message are the same. If is_handed is false, hand_over must
-- decide, also if the message was refused; `last` is then the token that this overwrote.
--
-- The script includes this where exactly one of lock and queue exists: if the queue does,
-- the lock is free. This fragment reads the script's own names, has_vote and now. It is
-- not a function, because defining one would take a good part of the script's time.
--#include tell counts
local is_handed = false
local head = publish_counts and has_vote and redis.pcall('ZCOUNT', waiters, '-inf', string.sub(now, 1, -4)) == 0
  and redis.pcall('ZRANGE', queue, '0', '0', 'WITHSCORES')
local grantee, ticket = head and head[1] or '', head and head[2]
local own, ended_part = string.match(owner, '^([^:]*:([^@~&#]*)[^~]*)')
local client, uuid, lease_ms
if #grantee <= 512 and grantee ~= own then
  client, uuid, lease_ms = string.match(grantee, '^([!-9;-}]+):([!"$%%\'-9;-?A-}]+@(%d+))$')
  --#include channel of_waiter
end
if client and publish_counts and lease_ms + 1000 <= tonumber(token_ms) and not string.find(ticket, '%D') then
  last = redis.call('SET', token, now, 'PX', token_ms, 'GET')
  if not last or (#last == #now and last < now) then
    local prefix, name = string.match(lock, '^([^{]*:){(.*)}$')
    local hold = string.sub(ended_part, -16) .. '.' .. ticket
    local server = string.match(incarnation, '^[^?!=]+') or '-'
    local message = 'grant ' .. uuid .. ' ' .. hold .. ' ' .. now .. ' ' .. now .. ' ' .. lease_ms .. ' ' .. server
      .. ' ' .. name
    --#include tell heard
    if heard > 0 then
      redis.call('HSET', lock, grantee .. '~' .. hold, '1')
      redis.call('PEXPIRE', lock, lease_ms)
      redis.call('ZREM', queue, grantee, own) -- a healing may have left the releaser's own place behind
      redis.call('ZREM', waiters, grantee, own)
      is_handed = true
    end
  end
end
