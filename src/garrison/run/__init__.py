"""A run: its plan and state, how they are folded, and the processes that decide for it, launcher, guardian and merge
processor."""
