"""Beliefs about the entries of a queue, and gate runs on sets of them. Pure."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from garrison.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping


@frozen
class Beliefs:
    """Probabilities before any gate run on these entries."""

    bad: Mapping[str, float]
    """Entry → that it is bad by itself."""
    clashes: Mapping[frozenset[str], float] = field(default_factory=dict)
    """Pair of entries → that they are red together, though each is good."""
    flake: float = 0.0
    """That a run on a good tree is red."""


@frozen
class Run:
    """Finished gate run on the target with `entries` merged in this order."""

    entries: tuple[str, ...]
    green: bool
    suspicion: Mapping[str, float] = field(default_factory=dict)
    """Entry → likelihood ratio of the log if that entry is bad; 1 for one that is not named."""
