"""`garrison doctor`: what is wrong with a home and its machine, and how it is mended.

`findings` decides and is pure: facts go in, findings with a severity and a remedy come out. `look_*` gather the facts
and change nothing, byte for byte; `mend` does the remedies. `examine` puts them together.
"""
