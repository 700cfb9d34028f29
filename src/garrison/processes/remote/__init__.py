"""Remote nodes: at home an orchestrator whose agent is a host, on the host a run of one node for each claim."""
