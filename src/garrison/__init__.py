"""garrison keeps a crew of coding agents at work on one git repository."""
