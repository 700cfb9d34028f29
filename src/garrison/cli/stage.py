"""Where a picture is shown: whether stdout is a terminal, how wide, and whether in colours. From facts that are given.

NO_COLOR and TERM=dumb mean no colours; FORCE_COLOR means colours on a pipe too; NO_COLOR wins.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """`columns` and `rows` are None where nothing need be cut."""

    terminal: bool
    colours: bool
    columns: int | None = None
    rows: int | None = None


def stage_of(terminal: bool, environ: Mapping[str, str], size: tuple[int, int]) -> Stage:
    """The stage on stdout: `terminal` says whether it is one, `size` is (columns, rows) of it. Pure."""
    dumb = environ.get("TERM", "") in ("dumb", "unknown")
    forced = environ.get("FORCE_COLOR", "") not in ("", "0")
    colours = not environ.get("NO_COLOR") and not dumb and (terminal or forced)
    if not terminal:
        return Stage(False, colours)
    return Stage(not dumb, colours, max(20, size[0]), max(5, size[1]))


def stage() -> Stage:
    """This process's."""
    size = shutil.get_terminal_size()
    return stage_of(sys.stdout.isatty(), os.environ, (size.columns, size.lines))


def show(written: str) -> None:
    """Write to stdout; what its encoding cannot say is shown as `?`."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(written.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()
