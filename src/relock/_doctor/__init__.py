"""Examination of masters, for `relock doctor` and for `Client.check`.

This package stands on the runtime, which knows nothing of it.
"""
