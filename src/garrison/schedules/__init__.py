"""Schedules: runs started by a clock. `policy.py` decides (pure); `starts.py` records and starts them."""
