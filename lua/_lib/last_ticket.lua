-- Provides last: the last waiter and its ticket, as ZREVRANGE tells them. Drops tickets from
-- end_of_tickets on, which another program wrote: no waiter could queue behind these.
local last = redis.call('ZREVRANGE', queue, 0, 0, 'WITHSCORES')
if tonumber(last[2] or 0) >= end_of_tickets then
  local wrong = redis.call('ZRANGEBYSCORE', queue, digits(end_of_tickets), '+inf', 'LIMIT', 0, 1000)
  redis.call('ZREM', queue, unpack(wrong))
  last = redis.call('ZREVRANGE', queue, 0, 0, 'WITHSCORES')
end
