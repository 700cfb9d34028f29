"""`garrison import`: import records of the original's scripts, without changing its files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from garrison.cli import resolve
from garrison.cli.commands import Command
from garrison.cli.merge_queue_process import enqueue
from garrison.cli.options import output_options
from garrison.cli.output import print_json, print_table
from garrison.errors import GarrisonError, NotFound
from garrison.records import signals
from garrison.records.hook import PHASES, Hook
from garrison.records.identity import Identity
from garrison.records.signals import TYPES, Signal
from garrison.records.store import Store
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Mapping

R = TypeVar("R", Identity, Hook)

STATE_FOLDERS = (".claude/state", "state", ".")
"""Places of identities/, hooks/ and merge-queue.json below DIR."""
SIGNAL_FOLDERS = (".claude/attractor/signals", ".claude/scripts/attractor/signals", ".pipelines/signals",
                  ".cobuilder/signals", "pipelines/signals", "signals")
MAX_BYTES = 1_000_000
"""Maximum size of a file: the original's are a few kilobytes."""


class Imported(Value):
    """Result for one file or entry."""

    what: str
    name: str
    result: str
    """`imported`, `known` if garrison already has it, or why it was skipped."""


@click.command("import", cls=Command, examples=(
    ("garrison import ~/src/project", "the repository in which the original's scripts worked"),
    ("garrison import ~/.claude", "records outside of a repository"),
))
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False, exists=True))
@output_options
def import_command(folder: Path, home: str | None, *, as_json: bool) -> None:
    """Import identities, hooks, waiting signals and the merge queue of the original's scripts from DIR.

    DIR is not modified, existing records are kept, and it is safe to repeat. Entries of the queue that have neither
    landed nor failed are enqueued at their branch's commit; `garrison merge-queue process` lands them.
    """
    store = resolve.open_store(home)
    results = [*_records(store, folder), *_signals(store, folder), *_queue(store, folder)]
    if not results:
        raise NotFound(f"{folder} has no identities, hooks, signals or merge-queue.json; name the repository "
                       "in which the scripts worked, or the folder with `state` in it")
    if as_json:
        print_json(results)
    else:
        print_table(("WHAT", "NAME", "RESULT"), [(each.what, each.name, each.result) for each in results], "")


def _records(store: Store, folder: Path) -> Iterator[Imported]:
    """Import identities and hooks."""
    for path in _files(folder, STATE_FOLDERS, "identities"):
        yield _attempt("identity", path, lambda body: _save(store, Identity, to_identity(body)))
    for path in _files(folder, STATE_FOLDERS, "hooks"):
        yield _attempt("hook", path, lambda body: _save(store, Hook, to_hook(body)))


def _save(store: Store, kind: type[R], record: R) -> str:
    if store.path(kind, record.key).exists():
        return "known"
    store.update(kind, record.key, lambda old: old or record)
    return "imported"


def _signals(store: Store, folder: Path) -> Iterator[Imported]:
    """Import the unhandled signals; those in processed/ are done."""
    by_role: dict[str, set[str]] = {}
    for key in store.keys(Identity):
        if not key.run:
            by_role.setdefault(key.role, set()).add(key.name)
    only = {role: next(iter(names)) for role, names in by_role.items() if len(names) == 1}

    def post(path: Path) -> Callable[[dict[str, object]], str]:
        def save(body: dict[str, object]) -> str:
            signal = to_signal(path.name, body, only)
            recipient = signal.recipient  # refuses a name that cannot be a folder
            file = signals.inbox_path(store.home, recipient) / signals.file_name(signal, 0)
            # the name follows from the original's file, so a repeated import recognises handled signals
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
            entries = to_queued_branches(_read(path))
        except (ValueError, KeyError, TypeError, OSError) as error:
            yield Imported("queue", path.name, f"skipped: {error}")
            continue
        for entry in entries:
            yield Imported("entry", entry.node, _enqueue(store.home, folder, entry))
        return


def _enqueue(home: Path, folder: Path, entry: QueuedBranch) -> str:
    if not entry.is_open:
        return "skipped: it is over"
    place = entry.repo or folder
    try:
        # enqueueing the same commit again returns the existing entry
        before = {each.id for each in resolve.open_queue(place, None, home).entries()}
        made = enqueue(entry.node, entry.branch, place, home=home).entry
    except GarrisonError as error:
        return f"skipped: {error}"
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
        return Imported(what, path.stem, f"skipped: it has no {error}")
    except (ValueError, TypeError, OSError, GarrisonError) as error:
        return Imported(what, path.stem, f"skipped: {error}")


def _read(path: Path) -> dict[str, object]:
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES} bytes")
    body = json.loads(path.read_bytes())
    if not isinstance(body, dict):
        raise TypeError("it is not a JSON object")
    return body


# ---- original --------------------------------------------------------------------------------------------------------

# Conversion of the original's records (the scripts described in garrison's first design) to garrison's.
#
# Pure: decoded JSON to records. The original's times are in whole seconds, its records lack run, incarnation and
# machine, and its signals lack ids and full names. Missing fields are derived from the existing ones, so that the same
# file gives the same record on each import.

_STATUSES = {"active": "active", "crashed": "crashed", "terminated": "terminated"}
_SIGNAL_TIME = "%Y%m%dT%H%M%SZ"
TERMINAL = "terminal"
"""The original's name of the launcher as a recipient."""


class QueuedBranch(Value):
    """Entry of the original's merge queue; `is_open` if it has neither landed nor failed."""

    node: str
    branch: str
    repo: str
    is_open: bool


def to_identity(body: Mapping[str, Any]) -> Identity:
    """Return the identity in one of the original's files; ValueError, KeyError or UsageError if invalid.

    An active one has no process to check: it counts as alive while its heartbeat is fresh.
    """
    role, name, status = str(body["role"]), str(body["name"]), str(body.get("status", "active"))
    if status not in _STATUSES:
        raise ValueError(f"its status {status!r} is unknown")
    created = to_time(body["created_at"])
    identity = Identity(
        str(body.get("agent_id") or fresh_id("identity", role, name, created)), role, name, "", created,
        session_id=str(body.get("session_id") or ""), worktree=_text(body.get("worktree")), status=_STATUSES[status],
        last_heartbeat=to_time(body.get("last_heartbeat") or body["created_at"]),
        crashed_at=_time(body.get("crashed_at")), terminated_at=_time(body.get("terminated_at")),
        predecessor_id=_text(body.get("predecessor_id")), metadata=dict(body.get("metadata") or {}))
    identity.key.full  # noqa: B018  # role and name are checked by building the key
    return identity


def to_hook(body: Mapping[str, Any]) -> Hook:
    """Return the hook in one of the original's files; ValueError, KeyError or UsageError if invalid."""
    role, name, created = str(body["role"]), str(body["name"]), to_time(body["created_at"])
    phase = str(body.get("phase", "planning"))
    if phase not in PHASES:
        raise ValueError(f"its phase {phase!r} is unknown")
    hook = Hook(str(body.get("hook_id") or fresh_id("hook", role, name, created)), role, name, "", created,
                to_time(body.get("updated_at") or body["created_at"]), phase,
                last_committed_node=_text(body.get("last_committed_node")),
                resumption_instructions=_text(body.get("resumption_instructions")),
                predecessor_hook_id=_text(body.get("predecessor_hook_id")), merged_at=_time(body.get("merged_at")))
    hook.key.full  # noqa: B018
    return hook


def to_signal(file: str, body: Mapping[str, Any], guardians: Mapping[str, str]) -> Signal:
    """Return the signal in one of the original's files; ValueError or KeyError if it cannot be delivered.

    Args:
        file: its file name, which determines the id.
        guardians: role → name, for roles that exist once, when a side names no node.
    """
    kind, payload = str(body["signal_type"]), dict(body.get("payload") or {})
    if kind not in TYPES:
        raise ValueError(f"its type {kind!r} is unknown")
    node = _text(payload.get("node_id"))
    source, target = (_side(str(body[side]), node, guardians) for side in ("source", "target"))
    return Signal(fresh_id("signal", file)[:12], {**source, "incarnation": 1}, {**target}, kind, "",
                  to_time(body["timestamp"]), node, 0, payload)


def to_queued_branches(body: Mapping[str, Any]) -> list[QueuedBranch]:
    """Return the entries of the original's merge-queue.json; KeyError or TypeError if invalid."""
    return [QueuedBranch(str(entry["node_id"]), str(entry["branch"]), str(entry.get("repo_root") or ""),
                         entry.get("status") in ("pending", "in_progress")) for entry in body.get("entries") or ()]


def to_time(text: object) -> str:
    """Return a time in garrison's format, with microseconds; ValueError if invalid."""
    text = str(text)
    try:
        at = datetime.strptime(text, _SIGNAL_TIME).replace(tzinfo=UTC)
    except ValueError:
        at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    at = at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


def fresh_id(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]


def _side(role: str, node: str | None, guardians: Mapping[str, str]) -> dict[str, str]:
    """Return the role and name of a signal's sender or recipient; the original names only a role."""
    if role == TERMINAL:
        return {"role": "launch", "name": "launch"}
    if role in ("runner", "orchestrator") and node:
        return {"role": role, "name": node}
    if role in guardians:
        return {"role": role, "name": guardians[role]}
    raise ValueError(f"it names {role} without a name, and there is not exactly one {role}")


def _text(value: object) -> str | None:
    return str(value) if value else None


def _time(value: object) -> str | None:
    return to_time(value) if value else None
