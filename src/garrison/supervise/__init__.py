"""Supervision: how a process is started, observed, judged, restarted and ended by force.

The decisions are pure: `verdict` (is it over?), `hang_detector` (does it hang?), `lease` (what is its successor?),
`restart` and `circuit` (when does it start again?), `decisions` (what follows for this process?). `explain` makes them
again from the journal. The actions are thin: `start` is the only way an incarnation begins, `replace` the only way it
ends by force, `observer` gathers what the decisions need.
"""
