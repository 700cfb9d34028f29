"""Previews: show a node's server in a browser of this machine.

`listeners` finds the ports of a node, `ways` connects to one, `rules` judges and rewrites requests (pure), `gateway`
forwards them, `service` runs as long as the node, `on_host` connects to a node on another machine, `own_server` starts
a server from an attempt's commit.
"""
