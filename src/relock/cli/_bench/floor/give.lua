-- The smallest release that is right: delete if it is still ours. The fixed floor of the benchmark.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
