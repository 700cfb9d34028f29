"""How lives begin, are judged and end by force.

What decides is pure and stands apart: `verdict` (is this life over?), `lease` (who comes next?), `restart` (again, or
give up?). What acts is thin and is one function each: `start.start_incarnation` and `start.register` are the only way a
layer begins, `replace.replace_incarnation` the only way a life ends by force. protocols.md is the specification.
"""
