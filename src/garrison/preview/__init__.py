"""Previews: show what a node's server serves, in a browser of this machine.

`listeners` finds the ports of a node, `ways` lead to one, `rules` judges and rewrites requests (pure), `gateway` passes
them on, `service` lives as long as the node does, `on_host` leads to a node on another machine, `own_server` starts a
server from an attempt's commit.
"""
