-- Takes the lock if it is free and nobody waits, else a place in the queue. Of the fixed floors of the benchmark.
if redis.call('EXISTS', KEYS[1], KEYS[2]) == 0 then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return 1
end
redis.call('RPUSH', KEYS[2], ARGV[1])
return 0
