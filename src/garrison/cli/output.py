"""How a command speaks: data on stdout, everything else on stderr, and never a traceback.

Light: the doors load this file, so rich and click are imported where they are used.
"""

from __future__ import annotations

import json
import os
import sys

from garrison.errors import GarrisonError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


def dumps(value: Any) -> str:
    """`value` as JSON for people and programs."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def show_json(value: Any) -> None:
    """Print `value` as JSON on stdout."""
    print(dumps(value))


def say(line: str) -> None:
    """Print one line on stderr."""
    from garrison.system.terminal_text import (
        clean,  # its patterns are compiled where words are shown, not in each cron call
    )

    print(clean(line), file=sys.stderr)


def debugging() -> bool:
    """Whether a traceback is wanted."""
    return os.environ.get("GARRISON_DEBUG") == "1"


def show_table(head: Sequence[str], rows: Iterable[Sequence[Any]], empty: str = "") -> None:
    """A table on stdout: rich's for a terminal, aligned text for a pipe. Without rows, `empty` is said on stderr."""
    cells = [[_cell(value) for value in row] for row in rows]
    if not cells:
        if empty:
            say(empty)
        return
    if sys.stdout.isatty():
        _rich(head, cells)
    else:
        print("\n".join(aligned(head, cells)))


def _cell(value: Any) -> str:
    from garrison.system.terminal_text import clean

    return "-" if value is None or value == "" else clean(str(value))


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table, columns padded with spaces, at least two between them."""
    table = [list(head), *[list(row) for row in rows]]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def _rich(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*head, box=SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(cell, overflow="fold") for cell in row))
    Console().print(table)


def guarded(work: Callable[[], int | None], refused: Callable[[GarrisonError], None]) -> int:
    """Run a command; its exit code (None is 0). `refused` tells of what garrison will not do."""
    try:
        code = work()
        sys.stdout.flush()
    except GarrisonError as error:
        if debugging():
            raise
        refused(error)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _no_reader()
    except OSError as error:
        if debugging():
            raise
        refused(GarrisonError(f"{error.strerror or error}: {error.filename or 'garrison cannot go on'}"))
        return 1
    except Exception as error:  # whatever it is, a user is not shown a traceback
        if debugging():
            raise
        refused(GarrisonError(f"a fault in garrison ({type(error).__name__}: {error}); GARRISON_DEBUG=1 shows where"))
        return 1
    return code or 0


def _no_reader() -> int:
    """Nobody reads stdout any more, which is no failure; what is still buffered goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


def tell(error: GarrisonError) -> None:
    """An error as its one line, and below it the end of the log that explains it, if there is one."""
    from garrison.system.terminal_text import clean_lines

    say(f"garrison: {error}")
    for line in clean_lines(error.tail):
        print(f"    {line}", file=sys.stderr)


def tell_json(error: GarrisonError) -> None:
    """An error as one JSON line, as the identity and hook doors give it."""
    print(json.dumps({"status": "error", "error": type(error).__name__, "message": str(error)}, ensure_ascii=False),
          file=sys.stderr)
