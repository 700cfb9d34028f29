"""Plain-text double-entry bookkeeping."""
