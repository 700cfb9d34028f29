"""Proxy: the only way out for a confined process tree, one process per run, outside the boundary.

It forwards to allowed hosts and calls model APIs with keys that never enter the boundary. `allowed_hosts`, `apis`,
`target`, `demand` and `token_counts` decide and are pure; `relay` serves one connection, `upstream` connects, `ledger`
counts, `process` is the program, and `registration` is the client of its users.
"""
