-- Provides just_now_us: within this time, no server can have got a new data set.
local just_now_us = 1000
