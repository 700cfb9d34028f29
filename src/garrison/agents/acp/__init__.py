"""ACP agents: any program that speaks the Agent Client Protocol, run as a session that survives its deaths.

`attempt` decides what follows when a connection has ended, as for Claude. `connection` is the process that holds the
protocol, outside of the sandbox; the agent's program is inside. Only `client` loads the protocol's library.
"""
