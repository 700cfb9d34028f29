"""What there is to say of the runs of a home, for whoever shows it: commands, the live screen, the web page.

The rule of this room: it reads and puts into words and JSON's shapes; it writes nothing, asks nobody, paints nothing.
"""
