"""Schedules: runs that a clock begins. `plan.py` decides (pure); `starts.py` records and begins them."""
