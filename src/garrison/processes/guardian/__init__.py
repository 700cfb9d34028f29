"""The guardian: owns a run's journal, decides which nodes start, and supervises runners and the merge processor."""
