"""Pre-flight: run set-up and gate once on the bare target before the first agent starts.

A launch that could not land anything fails at once, at no cost.

It also detects the editable-install trap: a gate whose Python imports the project from the user's own checkout would
test that checkout instead of the merged tree, and pass on broken code.
"""

from __future__ import annotations

import ast
import json
import os
import re
import select
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlparse

from garrison.config import PROJECT_FILE
from garrison.errors import ForeignImports, PreflightRed, Refused
from garrison.merge.config import QueueConfig
from garrison.merge.gate import GateRun, GateVerdict, gate_marker, list_targets_files, open_attestations
from garrison.merge.gate_files import command_words
from garrison.merge.gates_by_path import parse_rules
from garrison.merge.queue import MergeQueue
from garrison.merge.slots import Slot, acquire_slot
from garrison.records.names import is_run_branch
from garrison.sandbox.collect import find_checkout
from garrison.sandbox.place import Role
from garrison.sandbox.rights import read_rights
from garrison.system import untrusted
from garrison.system.clock import format_age
from garrison.system.command import run
from garrison.system.environment import child_environment
from garrison.system.git import Git, GitError, neutral
from garrison.system.git.signing import TRIAL_SECONDS, Signer, SigningFailed, find_signer
from garrison.system.worktree_files import count_lfs_pointers, describe_unused_lock_files
from garrison.values import Value, replace

_ASK_PYTHON = "import json, sys; print(json.dumps([sys.executable, sys.prefix, sys.path]))"
_MAPPING = re.compile(r"^(?:MAPPING|NAMESPACES)(?:\s*:[^=]+)?\s*=\s*(\{.*\})\s*$", re.MULTILINE)
FOREIGN = "imports from another checkout were allowed"
"""Note on a green pre-flight that other launches must not rely on."""
_MAX_LISTED = 20_000
"""Maximum number of names examined in a folder of packages."""
_LOOK = 200
"""Milliseconds between two polls of a gate whose wrapper stays since its command left processes behind."""


class PreflightResult(Value):
    """Green pre-flight: commit, tree, duration and log."""

    commit: str
    tree: str
    seconds: float
    log: Path


def preflight(queue: MergeQueue, config: QueueConfig, *, trees: Path, environment: Mapping[str, str], run: str = "",
              held_back: Sequence[str] = (), base: str | None = None, allow_foreign_imports: bool = False,
              recent: float = 0.0, limit_option: str = "",
              progress: Callable[[str], None] | None = None) -> PreflightResult:
    """Run set-up and gate on `base` (default: the target's tip), blocking. Refused, with the log's tail, unless green.

    The green tree is recorded in the queue; a queue that had paused itself resumes.

    Args:
        trees: folder of gate slots.
        environment: environment of the gate, without the variables named in `held_back`.
        recent: seconds for which a green pre-flight or landing of the same tree, gate, set-up and environment counts.
        limit_option: command-line option that set the time limits, named in reasons.
        progress: called with a line for each stage.
    """
    report = progress or (lambda line: None)
    config = queue.state.config.with_gate_of(config) if queue.state.config else config
    commit = queue.git.rev(base or f"refs/heads/{queue.target}")
    if commit is None:
        raise Refused(f"{queue.repo} has no branch {base or queue.target}; create it, or name another with --base")
    if config.hooks:
        queue.git.check_movable(queue.target)
    _report_rules(queue, config, commit, report)
    started = time.monotonic()
    log = queue.folder / "logs" / f"preflight-{run or 'hand'}.log"
    has_gate = bool(config.gate) and not config.no_gate
    tree = queue.git.tree_of(commit)
    files = "" if config.no_gate else list_targets_files(queue.git, commit, config.gate_from_target)
    age = queue.seconds_since_passed(tree, config.verdict_key(environment, files)) if has_gate and recent else None
    # a negative age: the clock was set back, so the verdict's age is unknown
    if age is not None and 0 <= age <= recent:
        report(f"pre-flight: gate on {queue.target} ({commit[:10]}) passed {format_age(age)} ago; not repeated")
        queue.resume_own_pause("pre-flight passed")
        return PreflightResult(commit, tree, 0.0, log)
    slot = acquire_slot(queue.git, trees / queue.git.key)
    run_gate = partial(_run, queue, slot, run=run, commit=commit, tree=tree, log=log, environment=environment,
                       held_back=held_back, limit_option=limit_option, report=report)
    try:
        if config.setup:
            report(f"pre-flight: set-up on {queue.target} ({commit[:10]})")
        if config.setup or not has_gate:
            _require_green(run_gate, replace(config, gate=None, no_gate=True), "set-up", report)
        else:
            _check_out(slot, config, commit)
        for note in [*slot.notes, *_lfs_note(queue, slot), *describe_unused_lock_files(slot.path, config.lock_files)]:
            report(f"note: {note}")
        if has_gate and not allow_foreign_imports and not _stands_at_checkout(queue, environment):
            _refuse_foreign_imports(config.gate or "", queue, slot, environment)
        if has_gate:
            report(f"pre-flight: gate on {queue.target} ({commit[:10]})")
            _require_green(run_gate, config, "gate", report)
    finally:
        slot.release()
    if not config.no_gate:
        queue.record_green(tree, config.verdict_key(environment, files), FOREIGN if allow_foreign_imports else "")
    queue.resume_own_pause("pre-flight passed")
    return PreflightResult(commit, tree, time.monotonic() - started, log)


def _report_rules(queue: MergeQueue, config: QueueConfig, commit: str, report: Callable[[str], None]) -> None:
    """Report the target's gates by path, which test less than the whole gate that runs now."""
    if not config.gate or config.no_gate or is_run_branch(queue.target):
        return
    try:
        rules = parse_rules(queue.git.run("cat-file", "blob", f"{commit}:{PROJECT_FILE}").out.encode(
            errors="surrogateescape"))
    except GitError:  # none declared
        return
    if rules.problem:
        report(f"note: everything has to pass the whole gate, since on {queue.target} {rules.problem}")
    elif rules.rules:
        often = f"for at least one landing in {rules.every}" if rules.every > 1 else "for each landing"
        report(f"gates by path: {', '.join(rule.name for rule in rules.rules)} ({PROJECT_FILE} of {queue.target}); "
               f"the whole gate runs {often}")


def identify(git: Git, environ: Mapping[str, str], report: Callable[[str], None]) -> tuple[str, Signer | None]:
    """Return the committer ('' for garrison itself) and signer of landings, as in the user's git configuration.

    A signature is tried once, non-interactively. Differences from the user's own commits are reported.
    """
    committer = git.find_committer(environ)
    if not committer:
        report("note: git knows no name of yours, so garrison itself commits what lands; `git config --global "
               "user.name NAME` and `user.email` change that")
    recorded = neutral.read_trusted(git.home, git.common) if git.home is not None else None
    trusted = {each.key: each.value for each in git.settings()
               if recorded is None or (each.key, each.value) in recorded.settings}
    try:
        signer = find_signer(trusted, committer, git.root, environ)
        if signer is not None:
            signer.sign(b"trial\n", TRIAL_SECONDS)
    except SigningFailed as error:
        report(f"note: what lands will not be signed, although commit.gpgsign is set: {error}")
        return committer, None
    return committer, signer


def _run(queue: MergeQueue, slot: Slot, config: QueueConfig, *, run: str, commit: str, tree: str, log: Path,
         environment: Mapping[str, str], held_back: Sequence[str], limit_option: str,
         report: Callable[[str], None]) -> GateVerdict:
    """Run one gate and wait for its verdict; end it if interrupted."""
    folder = queue.folder / "tests" / f"preflight-{slot.number}"
    marker = gate_marker(queue.home, run, f"preflight-{queue.git.key}-{slot.number}", 1)
    for old in (log, log.with_suffix(".setup.log")):
        # logs are appended to: otherwise the last pre-flight's lines would appear as this one's
        old.unlink(missing_ok=True)
    job = GateRun(slot, config, folder, log, marker, environment, queue.home, held_back,
                  attestations=open_attestations(queue.folder, queue.clock.utc()), is_base=True,
                  limit_option=limit_option)
    verdict = None
    try:
        with _explaining_lfs():
            job.start(commit, tree)
        if job.refusal:
            raise Refused(f"pre-flight: {job.refusal}")
        if job.layer is not None and not config.gate:
            report(f"set-up: kept from {format_age(time.time() - job.layer.created)} ago")
        while (verdict := job.poll(time.monotonic())) is None:
            poller = select.poll()
            if job.pidfd >= 0:
                poller.register(job.pidfd, select.POLLIN)
            poller.poll(_LOOK)
        return verdict
    finally:
        if verdict is None:
            job.abandon()
        job.remove()


def _check_out(slot: Slot, config: QueueConfig, commit: str) -> None:
    """Prepare a slot in which nothing runs before the gate: earlier checks only read files."""
    try:
        with _explaining_lfs():
            slot.prepare(commit, config.clean, config.keep)
    except Refused as error:  # a submodule that cannot be fetched
        raise Refused(f"pre-flight: {error}") from error


@contextmanager
def _explaining_lfs() -> Iterator[None]:
    """Explain why git cannot check out a commit if git-lfs is not installed."""
    try:
        yield
    except GitError as error:
        if "lfs" not in error.stderr:
            raise
        raise Refused("files of this repository are kept in git LFS, and git's lfs filter fails here; install git-lfs "
                      "where PATH finds it, or remove the section [filter \"lfs\"] of your git configuration to "
                      f"keep them as pointers ({error})") from error


def _lfs_note(queue: MergeQueue, slot: Slot) -> list[str]:
    pointers = count_lfs_pointers(queue.git, slot.path)
    return [f"files that are only LFS pointers, for agents and gate too: {pointers}; if they are needed, install "
            "git-lfs and run `git lfs install`"] if pointers else []


def _require_green(run_gate: Callable[[QueueConfig], GateVerdict], config: QueueConfig, what: str,
                   report: Callable[[str], None]) -> None:
    """Run a gate; PreflightRed unless it passes. A run without a verdict, ended by a signal, is repeated once."""
    verdict = run_gate(config)
    if verdict.result == "lost":
        report(f"pre-flight: {verdict.reason}; trying once more")
        verdict = run_gate(config)
    if verdict.result != "green":
        advice = (f"fix the {what} or the target first" if verdict.result != "lost" else
                  "fix that, then run the same command again")
        raise PreflightRed(f"pre-flight: on the bare target {verdict.reason}; {advice} (log: {verdict.log})",
                           verdict.tail, verdict.reason, verdict.result, verdict.refused_hosts)


# ------------------------------------------------------------------------------------------ the editable-install trap


def _stands_at_checkout(queue: MergeQueue, environment: Mapping[str, str]) -> bool:
    """Return whether the gate's worktree is mounted at the user's checkout: then imports from there are under test."""
    return find_checkout(queue.git, read_rights(queue.home, Role.GATE, environ=environment), environment) is not None


def _refuse_foreign_imports(gate: str, queue: MergeQueue, slot: Slot, environment: Mapping[str, str]) -> None:
    environment = child_environment(environment, environment, {"GARRISON_TREE": str(slot.path),
                                                                "GARRISON_SLOT": str(slot.number)})
    roots = [tree.path.resolve() for tree in queue.git.worktrees() if not _is_within(tree.path, slot.path.parent)]
    for python in pythons(gate, slot.path, environment):
        for name, path in foreign_imports(python, roots, slot.path, environment):
            raise ForeignImports(
                f"the gate's Python ({python}) imports {name} from {path}, in a checkout of the target repository: "
                "the gate would test that instead of the merged tree. Give the slot its own environment: --setup "
                "'python3 -m venv .venv && .venv/bin/pip install -e . pytest' with --gate '.venv/bin/python -m pytest',"
                " or pass --allow-foreign-imports")


def pythons(gate: str, cwd: Path, environment: Mapping[str, str]) -> list[Path]:
    """Return the interpreters that the gate runs: a python in PATH or in the worktree, or one named by a script.

    Links in the worktree are not followed: tests of earlier branches may have created them.
    """
    interpreters = []
    for word in command_words(gate):
        path = shutil.which(str(cwd / word) if "/" in word else word, path=environment.get("PATH", ""))
        if path is None:
            continue
        if re.fullmatch(r"python[\d.]*", Path(path).name):
            interpreters.append(Path(path))
        elif re.fullmatch(r"(py\.?test|coverage|nox|tox)[\d.-]*", Path(path).name):
            where = Path(path).relative_to(cwd) if path.startswith(f"{cwd}/") else None
            beginning = Path(path).read_bytes() if where is None else untrusted.read_begin(cwd, str(where), 256)
            first_line = beginning[:256].split(b"\n", 1)[0].decode(errors="replace")
            match = re.match(r"#!\s*(\S*python[\d.]*)", first_line)
            if match:
                interpreters.append(Path(match[1]))
    return interpreters


def foreign_imports(python: Path, roots: list[Path], cwd: Path, environment: Mapping[str, str],
                    ) -> list[tuple[str, Path]]:
    """Return (name, path) of modules that `python` would import from below `roots`, except from its own prefix."""
    try:
        prefix, path = _search_path(python, cwd, environment)
    except (OSError, ValueError, IndexError):
        return []  # no Python: the gate itself will fail
    prefix_path = Path(prefix).resolve()
    imports: list[tuple[str, Path]] = [("modules", Path(part)) for part in path[1:] if part]
    for part in path:
        if part.endswith(("site-packages", "dist-packages")):
            imports += _editable_installs(Path(part))

    def is_foreign(where: Path, root: Path) -> bool:
        return _is_within(where, root) and not (_is_within(prefix_path, root) and _is_within(where, prefix_path))

    return [(name, where) for name, where in imports
            if not _is_within(where, cwd) and any(is_foreign(where, root) for root in roots)]


def _search_path(python: Path, cwd: Path, environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return the prefix of a Python and its module search path, starting with its folder.

    This is outside the sandbox, and tests of earlier branches may have written to the worktree: a Python in the
    worktree is never run (its environment is read instead), and other Pythons do not see the worktree.
    """
    if not python.parent.resolve().is_relative_to(cwd.resolve()):
        _, prefix, path = json.loads(run([str(python), "-c", _ASK_PYTHON], 30.0, env=environment).out.splitlines()[-1])
        return str(prefix), [str(part) for part in path]
    prefix = str(python.parent.parent)
    path = ["", *(part for part in environment.get("PYTHONPATH", "").split(":") if os.path.isabs(part))]  # noqa: PTH117
    for name in untrusted.match(Path(prefix), "lib/python3.*/site-packages", _MAX_LISTED):
        site = Path(prefix, name)
        path.append(str(site))
        for listed in untrusted.match(site, "*.pth", _MAX_LISTED):
            path += [str(site / line) for line in untrusted.read_text(site, listed).splitlines()
                     if line.strip() and not line.startswith(("import ", "import\t", "#"))]
    return prefix, path


def _editable_installs(site: Path) -> list[tuple[str, Path]]:
    """Return the editable installs in a site-packages directory."""
    packages: list[tuple[str, Path]] = []
    for finder in untrusted.match(site, "__editable__*.py", _MAX_LISTED):
        for match in _MAPPING.finditer(untrusted.read_text(site, finder)):
            for name, where in _literal(match[1]).items():
                packages += [(str(name), Path(path)) for path in ([where] if isinstance(where, str) else where)]
    for url_file in untrusted.match(site, "*.dist-info/direct_url.json", _MAX_LISTED):
        try:
            body = json.loads(untrusted.read_text(site, url_file))
            is_editable = body.get("dir_info", {}).get("editable") and str(body.get("url", "")).startswith("file:")
        except (ValueError, RecursionError, AttributeError):
            continue
        if is_editable:
            packages.append((url_file.split("-")[0], Path(unquote(urlparse(body["url"]).path))))
    return packages


def _literal(text: str) -> dict[str, str | list[str]]:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    return value if isinstance(value, dict) else {}


def _is_within(path: Path, root: Path) -> bool:
    return path.resolve().is_relative_to(root.resolve())
