"""Web page of a home: runs live, and actions on them.

It shows what `views` read, and acts only through garrison's own commands; nothing is decided here, and nothing that
agents wrote is ever sent as anything but JSON.
"""
