"""Plans: turn a goal into a graph of tasks, and, once the user approves it, into an ordinary run."""
