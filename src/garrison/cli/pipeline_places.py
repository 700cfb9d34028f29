"""Where the runs of `garrison pipeline run` lie, and how the command line names one: by id, or by its directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from garrison.errors import NotFound, UsageError
from garrison.pipeline.run_directory import RunFolder
from garrison.records import atomic
from garrison.records.names import fit_run
from garrison.records.run import RunFiles
from garrison.settings import find_home
from garrison.supervise.start import fresh_id

FOLDER = "pipelines"
"""The folder of the home that holds them; runs of `garrison launch` lie in `runs`."""


def new_place(home: Path, graph: str | None, file: Path) -> Path:
    """A directory of its own for a new run."""
    stem = fit_run(graph or file.stem)
    while True:
        place = home / FOLDER / f"{stem}-{fresh_id()[:6]}"
        if not place.exists():
            return place


def find_place(run: str, home: str | None) -> RunFolder:
    """The run directory that `run` names: a path, or the id of a run in the home; NotFound with what there is."""
    kept, here = find_home(home) / FOLDER, Path(run)
    for path in (here, kept / run) if _is_path(run) else (kept / run, here):
        if RunFolder(path).exists():
            return RunFolder(path)
    if _is_path(run) or here.is_dir():
        why = "its journal.jsonl is missing, or has no whole record" if here.is_dir() else "it is no directory"
        raise NotFound(f"{run} holds no pipeline run: {why}; `garrison pipeline run FILE --run-dir DIR` begins one")
    if RunFiles(find_home(home), run).launch.is_file():
        raise NotFound(f"{run} is a run of `garrison launch`; use `garrison status {run}`, `garrison answer` and "
                       f"`garrison launch --resume {run}`")
    known = sorted(atomic.names(kept))
    some = f"; there are {', '.join(known[:8])}{' …' if len(known) > 8 else ''}" if known else ""
    raise NotFound(f"no pipeline run {run!r:.80} in {kept}{some}; `garrison pipeline run FILE` begins one")


def is_place(run: str, home: str | None) -> bool:
    """Whether `run` names a run of `garrison pipeline run`; NotFound for a path that holds none."""
    try:
        find_place(run, home)
    except NotFound:
        if _is_path(run):
            raise
        return False
    return True


def _is_path(run: str) -> bool:
    """Whether it can be no id."""
    return os.sep in run or run in (os.curdir, os.pardir)


def pairs(words: tuple[str, ...], option: str, meaning: str) -> dict[str, str]:
    """`KEY=VALUE` words as a mapping; UsageError for one without `=`."""
    found = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{option} {word!r:.60} is not {meaning}")
        found[key.strip()] = value
    return found


def context_values(words: tuple[str, ...]) -> dict[str, Any]:
    """`--set context.KEY=VALUE` words as context values: numbers, true, false, null, lists and objects are JSON."""
    import json

    found: dict[str, Any] = {}
    for key, value in pairs(words, "--set", "KEY=VALUE").items():
        if not key.removeprefix("context."):
            raise UsageError(f"--set {f'{key}={value}'!r:.60} names no key; write --set context.KEY=VALUE")
        try:
            meant = json.loads(value, parse_constant=_no_number)
        except ValueError:
            meant = value
        found[key.removeprefix("context.")] = meant
    return found


def _no_number(word: str) -> Any:
    raise ValueError(word)
