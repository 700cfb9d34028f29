"""Table of a benchmark: printed line by line as it is measured, or collected for `--json`."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Table:
    """Rows as they come; `widths` are those of the first two columns."""

    as_json: bool
    widths: tuple[int, int]
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, row: str, what: str, value: str, **figures: Any) -> None:
        """Add one line."""
        self.rows.append({"row": row, "what": what, "value": value, **figures})
        if not self.as_json:
            print(f"{row:{self.widths[0]}} {what:{self.widths[1]}} {value}", flush=True)

    @contextmanager
    def machine(self) -> Iterator[None]:
        """Around all measuring: where it was done and beside what load, before and after; then the JSON."""
        began = time.monotonic()
        where = f"{platform.platform()}, Python {platform.python_version()}"
        self.add("machine", where, f"{os.cpu_count()} cores, {_load()}", load=os.getloadavg()[0], cores=os.cpu_count())
        yield
        took = time.monotonic() - began
        self.add("machine", "at the end", f"{_load()}, {took:.0f} s in all", load=os.getloadavg()[0], seconds=took)
        if self.as_json:
            print(json.dumps({"rows": self.rows}, ensure_ascii=False, indent=1))


def _load() -> str:
    return f"load {os.getloadavg()[0]:.1f}"
