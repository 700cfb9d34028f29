"""Error of a broken rule."""

from __future__ import annotations


class Violation(AssertionError):
    """Something happened that must never happen."""
