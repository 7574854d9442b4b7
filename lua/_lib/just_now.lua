-- Provides just_now_us: too short a time for a master's data set to be copied.
local just_now_us = 1000
