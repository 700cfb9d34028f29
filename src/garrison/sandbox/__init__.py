"""Sandbox: confine the process trees that garrison starts for others, agents first of all.

`place` has the records: what one confined tree is given. `rights` reads them from the configuration, `probe` finds out
what this machine can hold, `confine` wraps a command.
"""
