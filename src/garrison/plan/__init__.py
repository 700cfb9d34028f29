"""Plans: from a goal to a graph of tasks that the user approves, and from there to a run like any other."""
