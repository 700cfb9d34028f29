"""Supervision: start, observe, judge, restart and end processes.

The decisions are pure: `verdict` (is this incarnation over?), `hang_detector` (does it hang?), `restart` (when may it
start again?), `decisions` (what follows for this name? also replayed from the journal). The actions are thin:
`incarnation` is the only way a process starts and the only way it is ended by force; `observer` gathers what the
decisions need.
"""
