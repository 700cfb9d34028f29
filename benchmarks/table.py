"""What a benchmark measured, told line by line as it comes, or kept for `--json`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Table:
    """Rows as they come; `widths` are those of the first two columns."""

    as_json: bool
    widths: tuple[int, int]
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, row: str, what: str, value: str, **figures: Any) -> None:
        """One line."""
        self.rows.append({"row": row, "what": what, "value": value, **figures})
        if not self.as_json:
            print(f"{row:{self.widths[0]}} {what:{self.widths[1]}} {value}", flush=True)
