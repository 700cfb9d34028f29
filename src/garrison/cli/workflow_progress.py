"""How a workflow's progress is told, on stderr: lines above a bar on a terminal, else one JSON object a line."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from garrison.cli.output import say

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from garrison.workflow.executor import Progress


class Telling:
    """Called with each `Progress`; a context manager, since a bar has an end. `as_json`: JSON on a terminal, too."""

    def __init__(self, *, as_json: bool) -> None:
        self._lines = as_json or not sys.stderr.isatty()
        self._bar: Any = None
        self._task: Any = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._stack.close()

    def __call__(self, one: Progress) -> None:
        """Tell it."""
        if self._lines:
            print(json.dumps(one.to_data(), ensure_ascii=False), file=sys.stderr, flush=True)
            return
        if line := words(one):
            say(line)
        if self._bar is None:
            self._begin(one.total)
        self._bar.update(self._task, completed=one.done, description=one.step)

    def _begin(self, total: int) -> None:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        class Step(TextColumn):
            def render(self, task: Any) -> Any:
                return escape(task.description)

        self._bar = self._stack.enter_context(Progress(
            BarColumn(30), MofNCompleteColumn(), TimeElapsedColumn(), Step(""), console=Console(stderr=True),
            transient=True, redirect_stdout=False))
        self._task = self._bar.add_task("", total=total)


def words(one: Progress) -> str:
    """A step that ended, or failed and is tried again, as a line; '' for one that begins. Pure."""
    if one.status.value == "running" and not one.error:
        return ""
    how = "is tried again after" if one.status.value == "running" else f"{one.status.value} in"
    return f"[{one.done}/{one.total}] {one.step} {how} {one.elapsed:.1f} s{f': {one.error}' if one.error else ''}"
