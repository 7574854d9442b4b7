-- Frees the lock and wakes the head of the queue, which then claims it: two hops. Of the fixed floors of the benchmark.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
local head = redis.call('LINDEX', KEYS[2], 0)
if head then
  redis.call('PUBLISH', head, 'free')
end
return 1
