"""Output of commands: data on stdout, messages and errors on stderr, never a traceback.

rich and the patterns of `terminal_text` are imported where they are used: most script commands only print JSON.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TextIO

from garrison.errors import GarrisonError, Refused
from garrison.values import to_builtins

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


class TerminalStream(io.TextIOBase):
    """Standard output or error on a terminal: colours pass, other control characters are spelled out.

    Commands write records, file names and texts that agents may have chosen; `guard_terminal` puts this writer under
    all of them. `trusted` is for garrison's own control sequences.
    """

    def __init__(self, trusted: TextIO) -> None:
        self.trusted = trusted

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.trusted.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self.trusted.errors

    @property
    def buffer(self) -> _TerminalBuffer:
        """Return the stream for bytes."""
        return _TerminalBuffer(self)

    def write(self, text: str) -> int:
        """Write a text."""
        from garrison.system.terminal_text import spell_obeyed

        if not isinstance(text, str):
            raise TypeError("a text is needed")
        self.trusted.write(spell_obeyed(text))
        return len(text)

    def flush(self) -> None:
        """Write the buffer."""
        self.trusted.flush()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.trusted.fileno()

    def isatty(self) -> bool:
        return True


class _TerminalBuffer(io.BufferedIOBase):
    """Bytes for a `TerminalStream`, in whole blocks."""

    def __init__(self, stream: TerminalStream) -> None:
        self._stream = stream

    def write(self, data: ReadableBuffer) -> int:
        block = bytes(data)
        self._stream.write(block.decode(errors="replace"))
        return len(block)

    def writable(self) -> bool:
        return True

    def flush(self) -> None:
        self._stream.flush()


def guard_terminal() -> None:
    """Route all terminal output of this process through a `TerminalStream`; idempotent."""
    if sys.stdout.isatty() and not isinstance(sys.stdout, TerminalStream):
        sys.stdout = TerminalStream(sys.stdout)
    if sys.stderr.isatty() and not isinstance(sys.stderr, TerminalStream):
        sys.stderr = TerminalStream(sys.stderr)


def ask(prompt: str = "", terminal: BinaryIO | None = None) -> str:
    """Prompt, and read a line from standard input, or from a terminal if given; EOFError at its end."""
    from garrison.system.terminal_text import spell_obeyed

    if terminal is None:
        return input(spell_obeyed(prompt))
    print(spell_obeyed(prompt), end="", file=sys.stderr, flush=True)
    if not (line := terminal.readline()):
        raise EOFError
    return line.decode(errors="replace")


def confirm(question: str, refusal: str, otherwise: str) -> None:
    """Ask the user before ending or removing something; Refused unless the answer is yes.

    Args:
        otherwise: advice if nobody can be asked.
    """
    if not sys.stdin.isatty():
        raise Refused(f"{refusal}: {otherwise}")

    import click

    if not click.confirm(question, err=True):
        raise Refused(refusal)


def trusted_stdout() -> TextIO:
    return sys.stdout.trusted if isinstance(sys.stdout, TerminalStream) else sys.stdout


# Lone surrogates, from file names that are not UTF-8, cannot be written at all. The others are invisible to readers but
# may be interpreted by a terminal or a model: C1 controls, direction marks, zero-width characters, tags (U+E0000).
_ESCAPED_IN_JSON = re.compile("[\ud800-\udfff\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
                              "\U000e0000-\U000e0fff]")


def dumps(value: object) -> str:
    """Return `value`, which may contain records, as indented JSON, escaping characters that a terminal interprets or
    hides."""
    body = json.dumps(to_builtins(value), indent=2, ensure_ascii=False)
    return _ESCAPED_IN_JSON.sub(lambda found: json.dumps(found[0])[1:-1], body)


QUIET = "garrison.quiet"
"""Key of a click context's `meta`: set by -q of the original's scripts."""


def print_json(value: object) -> None:
    """Print `value` as JSON on stdout; with -q only the status."""
    import click

    context = click.get_current_context(silent=True)
    print('{"status": "ok"}' if context is not None and context.meta.get(QUIET) else dumps(value))


def print_record(value: object) -> None:
    """Print a record as JSON, as in its file."""
    from garrison.records import record

    print_json(record.to_dict(value))


def print_result(value: object, words: str, *, as_json: bool) -> None:
    """Print a command's result: in words on a terminal, else, or on request, as JSON."""
    if as_json or not sys.stdout.isatty():
        print_json(value)
        return
    from garrison.system.terminal_text import clean_lines

    print("\n".join(clean_lines(words)))


def print_message(line: str) -> None:
    """Print one line on stderr, without control characters."""
    from garrison.system.terminal_text import clean

    print(clean(line), file=sys.stderr)


def print_error(error: GarrisonError) -> None:
    """Print an error on stderr as one line, followed by the end of an explanatory log, if any."""
    from garrison.system.terminal_text import clean_lines

    print_message(f"garrison: {error}")
    for line in clean_lines(error.tail):
        print(f"    {line}", file=sys.stderr)


def print_error_json(error: GarrisonError) -> None:
    """Print an error on stderr as one line of JSON, for the scripts that agents call."""
    print(json.dumps({"status": "error", "error": type(error).__name__, "message": str(error)}, ensure_ascii=False),
          file=sys.stderr)


def print_table(head: Sequence[str], rows: Iterable[Sequence[object]], empty: str = "", *, tabs: bool = False) -> None:
    """Print a table on stdout: drawn by rich on a terminal, aligned text in a pipe.

    Args:
        empty: message for stderr when there are no rows.
        tabs: in a pipe, separate the cells by tabs instead.
    """
    if tabs and not sys.stdout.isatty():
        print("\n".join("\t".join(" ".join(str(cell).split()) for cell in row) for row in (head, *rows)))
        return
    cells = [[_cell(value) for value in row] for row in rows]
    if not cells:
        if empty:
            print_message(empty)
        return
    if sys.stdout.isatty():
        _print_rich_table(head, cells)
    else:
        print("\n".join(align_columns(head, cells)))


def _cell(value: object) -> str:
    from garrison.system.terminal_text import clean

    return "-" if value is None or value == "" else clean(str(value))


def align_columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table whose columns are padded with spaces, at least two between them."""
    table = [list(head), *[list(row) for row in rows]]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def _print_rich_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*head, box=SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(cell, overflow="fold") for cell in row))
    Console().print(table)


def run_guarded(work: Callable[[], int | None], report: Callable[[GarrisonError], None]) -> int:
    """Call `work` and return the exit code: its result (None is 0), or the code of the error passed to `report`.

    With GARRISON_DEBUG=1 errors are raised instead, so that the traceback shows.
    """
    debugging = os.environ.get("GARRISON_DEBUG") == "1"
    try:
        code = work()
        if not sys.stdout.closed:  # a server closes it together with its connection
            sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of stdout has gone, which is not a failure; the rest of the buffer goes to /dev/null, since Python
        # flushes stdout again at exit, which would print the error after all.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except Exception as error:  # a bug: one line instead of a traceback
        if debugging:
            raise
        reported = _as_garrison_error(error)
        report(reported)
        return reported.exit_code
    return code or 0


def _as_garrison_error(error: Exception) -> GarrisonError:
    if isinstance(error, GarrisonError):
        return error
    if isinstance(error, ImportError):
        from garrison import extras

        if missing := extras.explain(error):
            return missing
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f": {error.filename}" if error.filename else ""
        return GarrisonError(f"{error.strerror}{where}; free some space (`df -h` shows where), then run the same "
                             "command again")
    if isinstance(error, OSError) and error.errno in (errno.EROFS, errno.EACCES) and error.filename:
        return GarrisonError(f"{error.strerror}: {error.filename}; make it writable, or keep home and worktrees "
                             f"elsewhere: {_elsewhere()}")
    if isinstance(error, OSError) and error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS) and error.filename:
        remedy = "clone the repository to a local disk, and start there" if "/.git/" in error.filename else \
            f"keep home and worktrees on a local disk: {_elsewhere()}"
        return GarrisonError(f"{error.filename} cannot be locked ({error.strerror}), as on some network file systems; "
                             f"{remedy}")
    if isinstance(error, FileNotFoundError) and not error.filename and _is_folder_gone():
        return GarrisonError("the current folder is gone; `cd` to an existing one")
    if isinstance(error, OSError):
        return GarrisonError(f"{error.strerror or error}: {error.filename or 'garrison cannot continue'}")
    return GarrisonError(f"internal error ({type(error).__name__}: {error}); GARRISON_DEBUG=1 shows the traceback")


def _is_folder_gone() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


def _elsewhere() -> str:
    """Return the shell command that puts home and worktrees on the disk of /var/tmp."""
    place = f"/var/tmp/garrison-{os.geteuid()}"
    return f"`export GARRISON_HOME={place}/home GARRISON_TREES={place}/trees`"


def flush() -> None:
    """Flush Python's buffers, which an exec would discard."""
    sys.stdout.flush()
    sys.stderr.flush()


@contextmanager
def interruptible() -> Iterator[None]:
    """Let TERM and HUP act like Ctrl-C, so that the code ends its processes and removes its files."""
    # under nohup, HUP stays ignored
    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
