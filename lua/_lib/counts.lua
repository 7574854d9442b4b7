-- Provides publish_counts: PUBLISH says how many clients received a message. A cluster
-- counts the subscribers of one node only: the next line is then sent with false.
local publish_counts = true
