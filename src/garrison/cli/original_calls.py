"""The scripts' functions as programs written for the original call them: its keywords, its names for some of them.

`docs/coming-over.md` says which calls work, and which do not on purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from garrison.cli import hooks, identities
from garrison.errors import NotFound

P = ParamSpec("P")
R = TypeVar("R")

_RECORD_FOLDERS = ("identities", "hooks")


def _accepting(function: Callable[P, R]) -> Callable[..., R]:
    """Return the function with the original's `state_dir` (a folder of records, or a home) and `timeout_seconds`."""
    @wraps(function)
    def call(*arguments: Any, state_dir: str | None = None, timeout_seconds: float | None = None,
             **keywords: Any) -> R:
        if state_dir is not None:
            folder = Path(state_dir)
            keywords["home"] = str(folder.parent if folder.name in _RECORD_FOLDERS else folder)
        if timeout_seconds is not None:
            keywords["timeout"] = timeout_seconds
        return function(*arguments, **keywords)

    return call


def _read_identity(role: str, name: str, run: str | None = None, home: str | None = None) -> dict[str, Any] | None:
    """Return an identity, None if there is none."""
    try:
        return identities.show(role, name, run, home)
    except NotFound:
        return None


def _mark_merged(role: str, name: str, run: str | None = None, home: str | None = None) -> dict[str, Any]:
    """Move a hook that is being validated to `merged`."""
    return hooks.update_phase(role, name, "merged", run, home=home)


def _update_resumption_instructions(role: str, name: str, instructions: str, last_committed_node: str | None = None,
                                    **place: Any) -> dict[str, Any]:
    """Record notes, and optionally the last commit, for the successor."""
    return hooks.update_resumption(role, name, instructions, last_committed_node, **place)


create_identity = _accepting(identities.create_identity)
read_identity = _accepting(_read_identity)
update_liveness = _accepting(identities.update_liveness)
find_stale = _accepting(identities.find_stale)
list_all = _accepting(identities.list_all)
mark_crashed = _accepting(identities.mark_crashed)
mark_terminated = _accepting(identities.mark_terminated)
create_hook = _accepting(hooks.create_hook)
read_hook = _accepting(hooks.read_hook)
update_phase = _accepting(hooks.update_phase)
update_resumption = _accepting(hooks.update_resumption)
update_resumption_instructions = _accepting(_update_resumption_instructions)
mark_merged = _accepting(_mark_merged)
build_wisdom_prompt_block = hooks.build_wisdom_prompt_block
