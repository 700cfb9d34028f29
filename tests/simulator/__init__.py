"""A seeded simulation of the pure decisions: real policies, a fake world, disturbances, and what must always hold.

`world` is the machine and the disk, `actors` are the layers (observe, decide with the real functions, act), `chaos`
disturbs them, `check` says what may never happen, `simulation` runs one seed. The same seed gives the same run.
"""
