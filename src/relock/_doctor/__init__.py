"""What examines masters, for `relock doctor` and for `Client.check`.

It stands on the runtime, which knows nothing of it.
"""
