-- Publishes a message of one client to another one. Changes nothing.
--
-- KEYS
--   lock  hash  the lock that the message is about, which decides the node of a cluster
-- ARGV
--   client   text  the client that the message is for
--   message  text  the message
-- RETURNS
--   told  now_us heard  so many clients received the message; -1 if the server does not say
-- WRITES
--   none
-- PUBLISHES
--   ask    to that client, about one of its holds
--   wait   to that client, which has asked
--   ended  to that client, about a hold that was ended by force
-- REPEATABLE
--   A second arrival repeats the message, and a client knows messages that it has had.

--#include time
--#include clock
--#include tell

local lock = KEYS[1]
local client = ARGV[1]
local message = ARGV[2]

local prefix, name = string.match(lock, '^([^{]*:){(.*)}')
local uuid -- of no waiter: on a Cluster, the client hears this on its own channel
--#include channel of_waiter
local heard = tell(prefix, name, client, message)
return { 'told', now_us, publish_counts and heard or -1 }
