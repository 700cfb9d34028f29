"""A run: its plan and state, the fold of its journal, and the processes that decide: launcher, guardian and merge
processor."""
