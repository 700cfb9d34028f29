"""The scripts' functions with the original's keywords and names, for programs written for it.

`docs/coming-over.md` lists the calls that work, and those that deliberately do not.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar, runtime_checkable

from garrison.cli import hooks, identities
from garrison.errors import NotFound, RecordCorrupt, UsageError
from garrison.records import atomic, record
from garrison.records.hook import PHASES, Hook
from garrison.records.signals import TYPES
from garrison.system import untrusted
from garrison.values import Value

P = ParamSpec("P")
R = TypeVar("R")

VALID_PHASES = frozenset(PHASES)
SIGNAL_TYPES = {name: name for name in (
    *TYPES, "NEEDS_REVIEW", "VIOLATION", "ORCHESTRATOR_STUCK", "ORCHESTRATOR_CRASHED", "VALIDATION_COMPLETE")}
"""The original's constants, by name; a home accepts those known to garrison, a folder of the caller all."""

_RECORD_FOLDERS = ("identities", "hooks", "signals")
_NAMES = {"timeout_seconds": "timeout", "instructions": "text", "node_id": "node", "signal_type": "type",
          "target_layer": "target"}
"""Argument of the original → garrison's."""
_POLL = 0.05
"""Seconds between two polls of a folder."""


@runtime_checkable
class HasBody(Protocol):
    """Result whose printed form differs from its fields."""

    def body(self) -> dict[str, object]:
        """Return the printed form."""
        ...


class NoEntry(dict[str, str]):
    """Entry of a result without one: empty, so false, and '' for every key.

    Agents' prompts look up `result["entry"]["node_id"]` without asking first whether there was anything to land.
    """

    def __missing__(self, key: str) -> str:
        return ""


class NoSuchRecord(NotFound, FileNotFoundError):
    """Missing record; a FileNotFoundError, as in the original."""


class NoSignal(NotFound, TimeoutError):
    """No signal arrived in a folder of the caller; a TimeoutError, as in the original."""


class BadArgument(UsageError, ValueError):
    """Malformed call; a ValueError, as in the original."""


class BadRecord(RecordCorrupt, json.JSONDecodeError):
    """Damaged record; a JSONDecodeError, as in the original."""

    def __init__(self, path: object, why: str) -> None:
        Exception.__init__(self, f"corrupt record {path}: {why}")
        self.path, self.why, self.msg, self.doc, self.pos, self.lineno, self.colno = str(path), why, why, "", 0, 1, 1


def as_original(function: Callable[P, object]) -> Callable[..., object]:
    """Return a function with the original's keywords and errors, which returns mappings in place of records.

    `state_dir` is a folder of records, or a home.

    `state_dir` and `timeout_seconds` are accepted everywhere, without effect if nothing is read or waited for.
    """
    taken = signature(function).parameters

    @wraps(function)
    def call(*arguments: Any, state_dir: str | None = None, **keywords: Any) -> object:
        if state_dir is not None:
            folder = Path(state_dir)
            keywords["home"] = str(folder.parent if folder.name in _RECORD_FOLDERS else folder)
        named = {_NAMES.get(name, name): value for name, value in keywords.items()}
        for name in {"home", "timeout"} - taken.keys():
            named.pop(name, None)
        try:
            return _to_mapping(function(*arguments, **named))
        except NoSignal:
            raise
        except NotFound as error:
            raise NoSuchRecord(str(error)) from None
        except RecordCorrupt as error:
            raise BadRecord(error.path, error.why) from None
        except UsageError as error:
            raise BadArgument(str(error)) from None

    return call


def _to_mapping(result: object) -> object:
    """Return the printed form of a result; texts and mappings unchanged."""
    if isinstance(result, list):
        return [_to_mapping(each) for each in result]
    if isinstance(result, HasBody):
        body = result.body()
        return {**body, "entry": NoEntry()} if body.get("entry", ...) is None else body
    return record.to_dict(result) if isinstance(result, Value) else result


def _or_none(function: Callable[P, R]) -> Callable[P, R | None]:
    """Return a function that returns None where there is no such record."""
    @wraps(function)
    def call(*arguments: P.args, **keywords: P.kwargs) -> R | None:
        try:
            return function(*arguments, **keywords)
        except NotFound:
            return None

    return call


# ------------------------------------------------------------------------------------------------ identities and hooks


def _mark_merged(role: str, name: str, run: str | None = None, home: str | None = None) -> Hook:
    """Move a hook in validation to `merged`."""
    return hooks.update_phase(role, name, "merged", run, home=home)


create_identity = as_original(identities.create_identity)
read_identity = as_original(_or_none(identities.show))
update_liveness = as_original(identities.update_liveness)
find_stale = as_original(identities.find_stale)
list_all = as_original(identities.list_all)
mark_crashed = as_original(identities.mark_crashed)
mark_terminated = as_original(identities.mark_terminated)
create_hook = as_original(hooks.create_hook)
read_hook = as_original(_or_none(hooks.read_hook))
update_phase = as_original(hooks.update_phase)
update_resumption = update_resumption_instructions = as_original(hooks.update_resumption)
mark_merged = as_original(_mark_merged)
build_wisdom_prompt_block = hooks.build_wisdom_prompt_block


# ------------------------------------------------------------------------------------------------------------- signals


def _write_signal(source: str, target: str, type: str, payload: Mapping[str, object] | None = None,
                  signals_dir: str | os.PathLike[str] | None = None, *, home: str | None = None) -> str:
    from garrison.cli import signals

    return signals.write_signal(source, target, type, payload, signals_dir, home=home)


def _read_signal(path: str | os.PathLike[str], signals_dir: str | os.PathLike[str] | None = None) -> object:
    """Return the signal in a file, garrison's or the original's; `signals_dir` is the folder of a bare file name."""
    from garrison.cli import signals

    file = Path(signals_dir or "", path)
    try:
        return signals.read_signal(file)
    except RecordCorrupt:
        if (body := _body(file)) is None:
            raise
        return body


def _body(path: Path) -> dict[str, object] | None:
    """Return a signal of the original's form; None for anything else."""
    try:
        body = json.loads(untrusted.read(path.parent, path.name) or b"")
    except ValueError:
        return None
    return body if isinstance(body, dict) and {"source", "target", "signal_type"} <= body.keys() else None


def list_signals(target_layer: str | None = None, signals_dir: str | os.PathLike[str] | None = None) -> list[str]:
    """Return the signal files in a folder of the caller, oldest first, optionally of one target.

    `garrison signals list` lists a home's signals.
    """
    from garrison.cli.signals import own_folder  # cron imports this module every minute for identities

    folder = own_folder(signals_dir)
    if folder is None:
        raise BadArgument("list_signals needs signals_dir=, your own folder; `garrison signals list --json` lists "
                          "those of the home")
    files = [folder / name for name in sorted(untrusted.list_names(folder)) if name.endswith(".json")] \
        if folder.is_dir() else []
    return [str(file) for file in files
            if target_layer is None or (_body(file) or {}).get("target") == target_layer]


def move_to_processed(path: str | os.PathLike[str]) -> str:
    """Move a signal's file into `processed/` next to it; return its new path."""
    file = Path(os.path.abspath(path))  # noqa: PTH100
    place = atomic.make_directory(file.parent / "processed") / file.name
    file.rename(place)
    return str(place)


def _wait_for_signal(target: str, timeout: float = 60.0, types: Sequence[str] | None = None, run: str | None = None,
                     home: str | None = None, *, signals_dir: str | os.PathLike[str] | None = None,
                     poll_interval: float = _POLL) -> object:
    """Take and return the oldest signal for `target`; None after `timeout` seconds.

    In a folder of the caller it is moved to `processed/`, and NoSignal is raised after `timeout` seconds.
    """
    from garrison.cli import signals

    folder = signals.own_folder(signals_dir)
    if folder is None:
        return signals.wait_for_signal(target, timeout, types, run, home)
    deadline = time.monotonic() + timeout
    atomic.make_directory(folder / "processed")
    while True:
        with atomic.locked(folder / ".lock"):  # two waiting callers must not get the same signal
            for path in list_signals(target, folder):
                body = _body(Path(path))
                if body is not None and (types is None or body["signal_type"] in types):
                    move_to_processed(path)
                    return body
        if time.monotonic() >= deadline:
            raise NoSignal(f"no signal for {target} came into {folder} within {timeout:g} s")
        time.sleep(min(poll_interval, _POLL, max(0.0, deadline - time.monotonic())))


def _tell_guardian(type: str, signals_dir: str | os.PathLike[str] | None, **payload: str) -> str:
    return str(write_signal(payload["role"], "guardian", type, payload, signals_dir))


def write_agent_registered(agent_id: str, role: str, name: str, session_id: str, worktree: str,
                           signals_dir: str | os.PathLike[str] | None = None) -> str:
    """Tell the guardian that an agent works; garrison's `create_identity` does this itself."""
    return _tell_guardian("AGENT_REGISTERED", signals_dir, agent_id=agent_id, role=role, name=name,
                          session_id=session_id, worktree=worktree)


def write_agent_crashed(agent_id: str, role: str, name: str, crashed_at: str,
                        signals_dir: str | os.PathLike[str] | None = None) -> str:
    """Tell the guardian that an agent crashed; garrison's `mark_crashed` does this itself."""
    return _tell_guardian("AGENT_CRASHED", signals_dir, agent_id=agent_id, role=role, name=name,
                          crashed_at=crashed_at)


def write_agent_terminated(agent_id: str, role: str, name: str, terminated_at: str,
                           signals_dir: str | os.PathLike[str] | None = None) -> str:
    """Tell the guardian that an agent has ended; garrison's `mark_terminated` does this itself."""
    return _tell_guardian("AGENT_TERMINATED", signals_dir, agent_id=agent_id, role=role, name=name,
                          terminated_at=terminated_at)


write_signal = as_original(_write_signal)
read_signal = as_original(_read_signal)
wait_for_signal = as_original(_wait_for_signal)
