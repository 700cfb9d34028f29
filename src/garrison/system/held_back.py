"""What a person is told when a command was not found: which variables it did not get."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NOT_FOUND = 127


def tell_held_back(names: Sequence[str], log: Path, code: int | None) -> str:
    """If exit `code` says that a command was not found: name them in its log; what to add to the reason."""
    if code != NOT_FOUND or not names:
        return ""
    with log.open("a") as file:
        file.write(f"garrison: these variables were held back, --env NAME passes one on: {', '.join(names)}\n")
    return f"; {len(names)} variables were held back, its log names them"
