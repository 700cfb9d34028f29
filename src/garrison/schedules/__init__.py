"""Schedules: runs that a clock begins. `policy.py` decides (pure); `starts.py` records and begins them."""
