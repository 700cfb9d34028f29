"""A launch: what is checked before it, how a run is created, and how unfinished runs are taken up again."""
