"""The web page of a home: what runs do, live, and what a person may do about it.

The rule of this room: it shows what `status` says and the journals tell, and acts only through garrison's own commands;
nothing is decided here, and nothing of what agents said is ever sent as anything but JSON.
"""
