"""Web page of a home: runs live, and actions on them.

The page shows what `views` read and acts through garrison's own commands. Nothing is decided here. Output of agents is
only ever sent as JSON.
"""
