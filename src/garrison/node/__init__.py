"""A node: the processes that do its work, runner and orchestrator, its worktree and its prompts."""
