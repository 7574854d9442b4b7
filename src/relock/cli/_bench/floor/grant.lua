-- Gives the lock to the head of the queue and tells it so: one hop. Of the fixed floors of the benchmark.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
local head = redis.call('LPOP', KEYS[2])
if head then
  redis.call('SET', KEYS[1], head, 'PX', ARGV[2])
  redis.call('PUBLISH', head, 'granted')
else
  redis.call('DEL', KEYS[1])
end
return 1
