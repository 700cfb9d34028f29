"""The repository's own commit hooks: whether they run for agents' commits, and the check of uncommitted work.

`[guard] hooks` decides. `agent`: they run inside an agent's sandbox for its own commits, and before garrison commits
what it left uncommitted: `HookJob` runs them on that, in the sandbox of acceptance, whose git view has the user's
hooks, not those that the agent may have changed. `gate`: the pre-commit hook is part of the gate. `none`: no hook
runs.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from garrison.config import GuardHooks
from garrison.ends import End, Refusal, RefusalKind
from garrison.merge.guard import configured_hooks_path
from garrison.node.places import node_place, open_network
from garrison.records import atomic
from garrison.sandbox.confine import confine
from garrison.sandbox.place import Role
from garrison.system.command import Job, read_tail

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from garrison.agents.base import WorkResult
    from garrison.processes.runtime import Runtime
    from garrison.records.run import Launch, Task
    from garrison.system.event_loop import EventLoop
    from garrison.system.git import Git

NAMES = ("pre-commit", "prepare-commit-msg", "commit-msg")
"""Hooks that can refuse a commit, in git's order."""
_LINES = 12
"""Lines of a hook's output in a refusal."""
_SCRIPT = """\
index=$(git rev-parse --git-path index) && message=$(git rev-parse --git-path COMMIT_EDITMSG) || exit 0
GIT_INDEX_FILE=$(mktemp) GIT_EDITOR=: && export GIT_INDEX_FILE GIT_EDITOR && rm -f "$GIT_INDEX_FILE" || exit 0
[ ! -f "$index" ] || cp "$index" "$GIT_INDEX_FILE"
git -c core.safecrlf=false add -A --ignore-errors 2>/dev/null
git diff --cached --quiet --ignore-submodules=none && exit 0
printf '%s\\n' "$1" > "$message"
run() {
    hook=$(git rev-parse --git-path "hooks/$1"); shift
    [ ! -x "$hook" ] || "$hook" "$@" || { echo "refused by ${hook##*/}"; exit 1; }
}
run pre-commit
run prepare-commit-msg "$message" message
run commit-msg "$message"
rm -f "$GIT_INDEX_FILE"
"""
"""Does what `git commit` would do with its hooks, on a copy of the index; $1 is the message."""


def find_hooks(git: Git) -> list[str]:
    """Return the names of the hooks that git would run for the user's own commits in this checkout."""
    configured = configured_hooks_path(git)
    folder = git.root / configured if configured else git.common / "hooks"
    return [name for name in NAMES if os.access(folder / name, os.X_OK)]


def describe_hooks(names: Sequence[str], mode: GuardHooks, *, has_gate: bool) -> str:
    """Return one line for a launch on a repository with these hooks, '' without any. Pure."""
    if not names:
        return ""
    hooks = f"hooks: {', '.join(names)}"
    verb = "run" if len(names) > 1 else "runs"
    if mode is GuardHooks.AGENT:
        return f"{hooks} {verb} for what agents commit ([guard] hooks)"
    if mode is GuardHooks.GATE and "pre-commit" in names and has_gate:
        return "hooks: pre-commit runs as part of the gate ([guard] hooks = \"gate\"), no other does"
    why = ", and there is no gate" if mode is GuardHooks.GATE and not has_gate else ""
    return f"{hooks} {'do' if len(names) > 1 else 'does'} not run ([guard] hooks = \"{mode}\"{why})"


class HookJob:
    """The hooks' check of what an agent left uncommitted, as a job that an event loop polls."""

    def __init__(self, runtime: Runtime, launch: Launch, task: Task, worktree: Path, env: Mapping[str, str],
                 folder: Path, message: str, outcome: WorkResult, now: float) -> None:
        """Start it. `outcome` is how the agent ended; `folder` is the attempt's folder in the home."""
        self.outcome = outcome
        self._log = atomic.make_directory(folder) / "hooks.log"
        self._log.unlink(missing_ok=True)
        self._seconds = runtime.timing.acceptance_timeout
        place = node_place(runtime, launch, task, worktree, Role.ACCEPTANCE)
        self._network = open_network(runtime, task, Role.ACCEPTANCE, folder, env, place=place)
        confined = confine(["/bin/sh", "-c", _SCRIPT, "hooks", message], self._network.apply(env),
                           self._network.open_in(place))
        self._job = Job.start(confined.argv, env=confined.env, cwd=worktree, log=self._log, now=now,
                              timeout_s=self._seconds)

    def poll(self, now: float) -> End | None:
        """Do one step; return the result once it has ended."""
        self._network.keep()
        result = self._job.poll(now)
        if result is not None:
            self._network.close()
        return result

    def kill(self, now: float) -> None:
        """End it; `poll` then gives its result."""
        self._job.kill(now)

    def refusal(self, result: End) -> Refusal | None:
        """Return the refusal of a hook; None if none refused."""
        if result.ok:
            return None
        lines = read_tail(self._log, _LINES).splitlines()
        name = next((name for name in NAMES if lines and lines[-1] == f"refused by {name}"), "")
        lines = lines[:-1] if name else lines
        if result.timed_out:
            lines.append(f"it did not end within {self._seconds:g} s")
        return Refusal(RefusalKind.HOOK, tuple(lines), len(lines), name)

    def watch(self, event_loop: EventLoop) -> None:
        """Wake when it ends."""
        event_loop.watch_process(self._job.pid, self._job.ticks)
        self._network.watch(event_loop)

    @property
    def wake_at(self) -> float | None:
        """Return when `poll` is due, in monotonic seconds."""
        return self._job.wake_at
