-- Provides just_now_us: no master's data set can be copied within this time.
local just_now_us = 1000
