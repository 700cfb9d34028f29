"""The error of a broken rule."""

from __future__ import annotations


class Violation(AssertionError):
    """Something happened that may never happen."""
