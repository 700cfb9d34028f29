"""Spelling: find the known name that was meant by a misspelt one. Pure.

Two names are near if at most two edits turn one into the other. An edit inserts, removes or replaces a character, or
swaps two neighbours. Case, `-` for `_` and camelCase are ignored.

Candidates come from an index of all known names with up to two characters removed (like SymSpell): near names share
such a remainder. So checking a graph with thousands of unknown names is fast.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import combinations

MAX_EDITS = 2
"""Maximum number of edits of a misspelt name."""
MIN_LENGTH = 3
"""Length below which a known name has no near names: two edits turn it into any other."""

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def nearest(name: str, known: Iterable[str], limit: int = MAX_EDITS) -> str | None:
    """Return the known name nearest to `name`, at most `limit` edits away; None if none is near.

    Ties are broken alphabetically.
    """
    folded = _fold(name)
    index = _index(frozenset(known))
    candidates = {entry for remainder in _remainders(folded) for entry in index.get(remainder, ())}
    ranked = sorted((edits(folded, _fold(entry)), entry) for entry in candidates)
    return next((entry for count, entry in ranked if count <= min(limit, _limit(entry))), None)


def correction(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return a question for the nearest known name; `otherwise` if none is near."""
    near = nearest(name, known)
    return f"did you mean {near}?" if near else otherwise


def edits(first: str, second: str) -> int:
    """Return the number of edits between two names (optimal string alignment distance)."""
    rows = [list(range(len(second) + 1))]
    for at, char in enumerate(first, 1):
        row = [at]
        for place, other in enumerate(second, 1):
            count = min(rows[-1][place] + 1, row[-1] + 1, rows[-1][place - 1] + (char != other))
            if at > 1 and place > 1 and char == second[place - 2] and first[at - 2] == other:
                count = min(count, rows[-2][place - 2] + 1)
            row.append(count)
        rows.append(row)
    return rows[-1][-1]


def is_slip(name: str, known: str) -> bool:
    """Return whether `name` is `known` with letters missing, added or swapped, at most two.

    Replacing a letter may give another real word (passed and parsed, skip and ship, mode and node).
    """
    return name != known and nearest(name, (known,)) is not None and (
        sorted(name) == sorted(known) or _is_within(name, known) or _is_within(known, name))


def _is_within(shorter: str, longer: str) -> bool:
    letters = iter(longer)
    return all(letter in letters for letter in shorter)


def _limit(known: str) -> int:
    """Return the maximum edits of a name near `known`: fewer for short names."""
    return -1 if len(known) < MIN_LENGTH else min(MAX_EDITS, len(known) - 2)


def _fold(name: str) -> str:
    return _HUMP.sub("_", name).replace("-", "_").casefold()


def _remainders(name: str) -> Iterator[str]:
    for count in range(min(MAX_EDITS, len(name)) + 1):
        yield from map("".join, combinations(name, len(name) - count))


@lru_cache(maxsize=64)
def _index(known: frozenset[str]) -> dict[str, list[str]]:
    index: dict[str, list[str]] = {}
    for entry in sorted(known):
        for remainder in set(_remainders(_fold(entry))):
            index.setdefault(remainder, []).append(entry)
    return index
