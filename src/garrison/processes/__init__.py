"""The four layers and the merge processor, each a real process.

Every layer is the same shape: observe everything, decide (pure, in a `*_policy` file), act, beat, sleep until something
happens or the slow timer fires. Events only wake a loop early; a lost one costs a second. Layers know each other by
records and signals alone.
"""
