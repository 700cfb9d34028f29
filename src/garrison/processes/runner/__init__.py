"""Runner: takes one node from its worktree to a landed branch, and supervises its orchestrator."""
