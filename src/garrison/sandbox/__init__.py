"""Sandbox: confine the process trees that garrison starts on behalf of others, above all agents.

`place` has the records: what a confined tree gets. `rights` reads them from the configuration, `probe` finds out what
this machine can enforce, `confine` wraps a command.
"""
