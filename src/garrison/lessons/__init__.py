"""Lessons: proposed by a fixed rule from repeated refusals, and added to prompts only if the user keeps them."""
