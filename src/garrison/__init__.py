"""garrison keeps a crew of coding agents at work on one git repository."""

__version__ = "1.0.0"
