-- The smallest take that is right: set if absent, with a lease. The fixed floor of the benchmark.
return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
