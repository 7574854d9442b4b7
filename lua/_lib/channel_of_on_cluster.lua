-- Sets publish_counts: whether the waiter with this uuid listens on the channel of its name. See tell_on_cluster.
publish_counts = uuid ~= nil and string.byte(uuid) == 36 -- a $
