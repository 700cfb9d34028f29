"""Lessons: what kept sending work back, proposed by a fixed rule, and added to prompts only at the user's word."""
