"""Demonstration of garrison: agents change a small project while each of garrison's processes is killed once.

`main` runs the demonstration with command agents, `claude` the one with Claude sessions. Both use `sandbox` (a
temporary folder with everything the run touches), `chaos` (which process is killed when) and `report` (what happened,
and what was promised but not seen).
"""
