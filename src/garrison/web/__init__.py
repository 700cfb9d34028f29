"""Web page of a home: watch runs live and act on them.

It shows what `views` reads, and acts only through garrison's own commands. Nothing is decided here, and text written by
agents is only ever sent as JSON.
"""
