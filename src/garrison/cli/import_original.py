"""`garrison import`: continue what the original's scripts recorded. Its files are read, never changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import click

from garrison.cli import resolve
from garrison.cli.commands import Command
from garrison.cli.merge_queue_process import enqueue
from garrison.cli.options import output_options
from garrison.cli.output import print_json, print_table
from garrison.errors import GarrisonError, NotFound
from garrison.records import original, signals
from garrison.records.hook import Hook
from garrison.records.identity import Identity
from garrison.records.store import Store
from garrison.values import Value

R = TypeVar("R", Identity, Hook)

STATE_FOLDERS = (".claude/state", "state", ".")
"""Where identities/, hooks/ and merge-queue.json lie below DIR."""
SIGNAL_FOLDERS = (".claude/attractor/signals", ".claude/scripts/attractor/signals", ".pipelines/signals",
                  ".cobuilder/signals", "pipelines/signals", "signals")
MAX_BYTES = 1_000_000
"""Size up to which a file is read: the original's are a few kilobytes."""


class Imported(Value):
    """What became of one file or entry."""

    what: str
    name: str
    result: str
    """`imported`, `known` if garrison has it already, or why it was left."""


@click.command("import", cls=Command, examples=(
    ("garrison import ~/src/project", "the repository in which the original's scripts worked"),
    ("garrison import ~/.claude", "what they recorded outside of a repository"),
))
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False, exists=True))
@output_options
def import_command(folder: Path, home: str | None, *, as_json: bool) -> None:
    """Import identities, hooks, waiting signals and the merge queue of the original's scripts from DIR.

    Nothing in DIR is changed, what garrison has already stays, and to repeat it is harmless. Entries of the queue that
    have neither landed nor failed are enqueued at their branch's commit; `garrison merge-queue process` lands them.
    """
    store = resolve.open_store(home)
    results = [*_records(store, folder), *_signals(store, folder), *_queue(store, folder)]
    if not results:
        raise NotFound(f"{folder} holds no identities, hooks, signals or merge-queue.json; name the repository "
                       "in which the scripts worked, or the folder that holds `state`")
    if as_json:
        print_json(results)
    else:
        print_table(("WHAT", "NAME", "RESULT"), [(each.what, each.name, each.result) for each in results], "")


def _records(store: Store, folder: Path) -> Iterator[Imported]:
    """Import identities and hooks."""
    for path in _files(folder, STATE_FOLDERS, "identities"):
        yield _attempt("identity", path, lambda body: _save(store, Identity, original.to_identity(body)))
    for path in _files(folder, STATE_FOLDERS, "hooks"):
        yield _attempt("hook", path, lambda body: _save(store, Hook, original.to_hook(body)))


def _save(store: Store, kind: type[R], record: R) -> str:
    if store.path(kind, record.key).exists():
        return "known"
    store.update(kind, record.key, lambda old: old or record)
    return "imported"


def _signals(store: Store, folder: Path) -> Iterator[Imported]:
    """Import the signals that nobody has taken; those in processed/ are done."""
    by_role: dict[str, set[str]] = {}
    for key in store.keys(Identity):
        if not key.run:
            by_role.setdefault(key.role, set()).add(key.name)
    only = {role: next(iter(names)) for role, names in by_role.items() if len(names) == 1}

    def post(path: Path) -> Callable[[dict[str, object]], str]:
        def save(body: dict[str, object]) -> str:
            signal = original.to_signal(path.name, body, only)
            recipient = signal.recipient  # which refuses a name that could not be a folder
            file = signals.inbox_path(store.home, recipient) / signals.file_name(signal, 0)
            known = file.exists() or (file.parent / "taken" / file.name).exists()
            if not known:
                signals.post(store.home, signal, 0)
            return "known" if known else "imported"

        return save

    for path in _files(folder, SIGNAL_FOLDERS, ""):
        yield _attempt("signal", path, post(path))


def _queue(store: Store, folder: Path) -> Iterator[Imported]:
    """Enqueue the open entries of the merge queue."""
    for place in STATE_FOLDERS:
        path = folder / place / "merge-queue.json"
        if not path.is_file():
            continue
        try:
            entries = original.to_queued_branches(_read(path))
        except (ValueError, KeyError, TypeError, OSError) as error:
            yield Imported("queue", path.name, f"left: {error}")
            continue
        for entry in entries:
            yield Imported("entry", entry.node, _enqueue(store.home, folder, entry))
        return


def _enqueue(home: Path, folder: Path, entry: original.QueuedBranch) -> str:
    if not entry.is_open:
        return "left: it is over"
    place = entry.repo or folder
    try:
        before = {each.id for each in resolve.open_queue(place, None, home).entries()}
        made = enqueue(entry.node, entry.branch, place, home=home).entry
    except GarrisonError as error:
        return f"left: {error}"
    return "known" if made.id in before else "imported"


def _files(folder: Path, places: tuple[str, ...], name: str) -> list[Path]:
    """Return the JSON files of the first of several places that exists."""
    for place in places:
        found = folder / place / name
        if found.is_dir() and (files := sorted(found.glob("*.json"))):
            return files
    return []


def _attempt(what: str, path: Path, save: Callable[[dict[str, object]], str]) -> Imported:
    try:
        return Imported(what, path.stem, save(_read(path)))
    except KeyError as error:
        return Imported(what, path.stem, f"left: it has no {error}")
    except (ValueError, TypeError, OSError, GarrisonError) as error:
        return Imported(what, path.stem, f"left: {error}")


def _read(path: Path) -> dict[str, object]:
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES} bytes")
    body = json.loads(path.read_bytes())
    if not isinstance(body, dict):
        raise TypeError("it holds no JSON object")
    return body
