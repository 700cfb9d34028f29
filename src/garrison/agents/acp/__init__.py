"""ACP agents: any program that speaks the Agent Client Protocol, run as a session that survives its deaths.

`attempt` decides what follows the end of a connection, as for Claude. `connection` is the process that speaks the
protocol, outside the sandbox; the agent's program is inside. Only `client` loads the protocol's library.
"""
