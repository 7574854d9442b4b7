-- Provides token_spare_ms: by how much the key of the last fencing token outlives a lease.
local token_spare_ms = 1000
