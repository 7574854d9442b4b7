-- Takes the free lock for the head of the queue: the second of two hops. Of the fixed floors of the benchmark.
if redis.call('EXISTS', KEYS[1]) == 1 or redis.call('LINDEX', KEYS[2], 0) ~= ARGV[1] then
  return 0
end
redis.call('LPOP', KEYS[2])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
