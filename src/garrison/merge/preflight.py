"""Pre-flight: set-up and gate run once on the bare target before the first agent starts, so that a launch that cannot
land anything ends at once and has cost nothing.

Also the editable-install trap: a gate whose Python imports the project from the user's own checkout would test that
checkout, not the merged tree, and pass on broken code.
"""

from __future__ import annotations

import ast
import json
import re
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from garrison.errors import PreflightRed, Refused
from garrison.merge import verdicts
from garrison.merge.config import QueueConfig
from garrison.merge.gate import GateRun, Verdict, gate_marker
from garrison.merge.queue import MergeQueue
from garrison.merge.slots import Slot, acquire_slot
from garrison.system.environment import child_environment
from garrison.system.git import GitError
from garrison.system.worktree_files import count_lfs_pointers

_ASK_PYTHON = "import json, sys; print(json.dumps([sys.executable, sys.prefix, sys.path]))"
_MAPPING = re.compile(r"^(?:MAPPING|NAMESPACES)(?:\s*:[^=]+)?\s*=\s*(\{.*\})\s*$", re.MULTILINE)


@dataclass(frozen=True)
class PreflightResult:
    """A green pre-flight: the commit and tree it ran on, how long it took, where its log is."""

    commit: str
    tree: str
    seconds: float
    log: Path


def preflight(queue: MergeQueue, config: QueueConfig, *, trees: Path, environment: Mapping[str, str], run: str = "",
              held_back: Sequence[str] = (), base: str | None = None, allow_foreign_imports: bool = False,
              progress: Callable[[str], None] | None = None) -> PreflightResult:
    """Run set-up and gate on `base` (default: the target's tip), blocking. Refused, with the log's tail, unless green.

    The green tree is recorded in the queue, and a pause of the queue is lifted. `progress` is told each stage.
    """
    say = progress or (lambda line: None)
    config = queue.state.config.brought(config) if queue.state.config else config
    commit = queue.git.rev(base or f"refs/heads/{queue.target}")
    if commit is None:
        raise Refused(f"{queue.repo} has no branch {base or queue.target}; create it, or name another with --base")
    queue.git.check_movable(queue.target)
    begun = time.monotonic()
    log = queue.folder / "logs" / f"preflight-{run or 'hand'}.log"
    slot = acquire_slot(queue.git, trees / queue.git.key)
    try:
        if config.setup:
            say(f"pre-flight: set-up on {queue.target} ({commit[:10]})")
        setup_only = replace(config, gate=None, no_gate=True)
        _demand(_run(queue, slot, setup_only, run=run, commit=commit, log=log, environment=environment,
                     held_back=held_back), "set-up")
        for note in [*slot.notes, *_lfs_note(queue, slot)]:
            say(f"note: {note}")
        if not allow_foreign_imports and config.gate and not config.no_gate:
            _refuse_foreign(config.gate, queue, slot.path, environment_of(slot, environment))
        if config.gate and not config.no_gate:
            say(f"pre-flight: gate on {queue.target} ({commit[:10]})")
            _demand(_run(queue, slot, config, run=run, commit=commit, log=log, environment=environment,
                         held_back=held_back), "gate")
    finally:
        slot.release()
    tree = queue.git.tree_of(commit)
    if not config.no_gate:
        queue.record_green(tree, verdicts.verdict_key(config, environment))
    queue.resume("pre-flight passed")
    return PreflightResult(commit, tree, time.monotonic() - begun, log)


def environment_of(slot: Slot, environment: Mapping[str, str]) -> dict[str, str]:
    """What a gate in `slot` sees."""
    return child_environment(environment, environment, {"GARRISON_TREE": str(slot.path),
                                                         "GARRISON_SLOT": str(slot.number)})


def _run(queue: MergeQueue, slot: Slot, config: QueueConfig, *, run: str, commit: str, log: Path,
         environment: Mapping[str, str], held_back: Sequence[str]) -> Verdict:
    """One gate run to its end; ended with us if we are interrupted."""
    folder = queue.folder / "tests" / f"preflight-{slot.number}"
    marker = gate_marker(queue.home, run, f"preflight-{slot.number}", 1)
    for old in (log, log.with_suffix(".setup.log")):
        old.unlink(missing_ok=True)
    job = GateRun(slot, config, folder, log, marker, environment, held_back)
    verdict = None
    try:
        _begin(job, commit)
        while (verdict := job.poll(time.monotonic())) is None:
            poller = select.poll()
            if job.pidfd >= 0:
                poller.register(job.pidfd, select.POLLIN)
            poller.poll(1000)
        return verdict
    finally:
        if verdict is None:
            job.abandon()
        job.forget()


def _begin(job: GateRun, commit: str) -> None:
    """Begin; a tree that git cannot show, because a filter of the user's configuration is not there, is told so."""
    try:
        job.begin(commit)
        if job.refusal:
            raise Refused(f"pre-flight: {job.refusal}")
    except GitError as error:
        if "lfs" not in error.stderr:
            raise
        raise Refused("files of this repository are kept in git LFS, and git's lfs filter fails here; install git-lfs "
                      "where PATH finds it, or take the section [filter \"lfs\"] out of your git configuration, then "
                      f"they stay pointers ({error})") from error


def _lfs_note(queue: MergeQueue, slot: Slot) -> list[str]:
    pointers = count_lfs_pointers(queue.git, slot.path)
    return [f"files that are only LFS pointers, for agents and gate too: {pointers}; if they are needed, install "
            "git-lfs and run `git lfs install`"] if pointers else []


def _demand(verdict: Verdict, what: str) -> None:
    if verdict.result != "green":
        raise PreflightRed(f"pre-flight: on the bare target {verdict.reason}; mend the {what} or the target first "
                           f"(log: {verdict.log})", verdict.tail)


# ------------------------------------------------------------------------------------------ the editable-install trap


def _refuse_foreign(gate: str, queue: MergeQueue, slot: Path, environment: Mapping[str, str]) -> None:
    roots = [tree.path.resolve() for tree in queue.git.worktrees() if not _within(tree.path, slot.parent)]
    for python in pythons(gate, slot, environment):
        for name, path in foreign_imports(python, roots, slot, environment):
            raise Refused(
                f"the gate's Python ({python}) imports {name} from {path}, in a checkout of the target repository: "
                "the gate would test that instead of the merged tree. Give the slot an environment of its own: --setup "
                "'python3 -m venv .venv && .venv/bin/pip install -e . pytest' with --gate '.venv/bin/python -m pytest',"
                " or say --allow-foreign-imports")


def pythons(gate: str, cwd: Path, environment: Mapping[str, str]) -> list[Path]:
    """Interpreters that the gate's commands run: a python in PATH or in the tree, or the one a script's #! names."""
    found = []
    for word in verdicts.command_words(gate):
        path = shutil.which(str(cwd / word) if "/" in word else word, path=environment.get("PATH", ""))
        if path is None:
            continue
        if re.fullmatch(r"python[\d.]*", Path(path).name):
            found.append(Path(path))
        elif re.fullmatch(r"(py\.?test|coverage|nox|tox)[\d.-]*", Path(path).name):
            first = Path(path).read_bytes()[:256].split(b"\n", 1)[0].decode(errors="replace")
            match = re.match(r"#!\s*(\S*python[\d.]*)", first)
            if match:
                found.append(Path(match[1]))
    return found


def foreign_imports(python: Path, roots: list[Path], cwd: Path, environment: Mapping[str, str],
                    ) -> list[tuple[str, Path]]:
    """(what, from where) for everything that `python` would import from below one of `roots`, its own prefix apart."""
    try:
        told = subprocess.run([str(python), "-c", _ASK_PYTHON], env=dict(environment), cwd=cwd, capture_output=True,
                              stdin=subprocess.DEVNULL, timeout=30, check=True).stdout
        _, prefix, path = json.loads(told.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return []  # no Python to ask: the gate itself will say so
    own = Path(prefix).resolve()
    seen: list[tuple[str, Path]] = [("modules", Path(part)) for part in path[1:] if part]
    for part in path:
        if part.endswith(("site-packages", "dist-packages")):
            seen += _editable(Path(part))
    return [(name, where) for name, where in seen
            if any(_within(where, root) and not (_within(own, root) and _within(where, own)) for root in roots)
            and not _within(where, cwd)]


def _editable(site: Path) -> list[tuple[str, Path]]:
    """What a site-packages directory says about packages installed in place."""
    found: list[tuple[str, Path]] = []
    for finder in site.glob("__editable__*.py"):
        for match in _MAPPING.finditer(finder.read_text(errors="replace")):
            for name, where in _literal(match[1]).items():
                found += [(str(name), Path(one)) for one in ([where] if isinstance(where, str) else where)]
    for told in site.glob("*.dist-info/direct_url.json"):
        try:
            body = json.loads(told.read_bytes())
        except (OSError, ValueError):
            continue
        if body.get("dir_info", {}).get("editable") and str(body.get("url", "")).startswith("file:"):
            found.append((told.parent.name.split("-")[0], Path(unquote(urlparse(body["url"]).path))))
    return found


def _literal(text: str) -> dict[str, Any]:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return {}
    return value if isinstance(value, dict) else {}


def _within(path: Path, root: Path) -> bool:
    return path.resolve().is_relative_to(root.resolve())
