"""Tasks of CooperBench as git repositories: a commit for each feature, its suite in files of its own, and one for all.

A dataset is a folder of libraries; each has tasks, each task features:

    LIBRARY/base.bundle                  a git bundle with a branch `base/TASK` for each task
    LIBRARY/TASK/combined.patch          all features of the task at once (optional)
    LIBRARY/TASK/FEATURE/feature.patch   the feature, against the task's base: its gold patch
    LIBRARY/TASK/FEATURE/tests.patch     its held-out tests, against the same base

All features of a task add their tests at the same place of the same file, so with the tests in place nearly every pair
would conflict in its tests alone. So each changed test file is copied as a file of the feature's own, with the
original left as it was; other files of a tests patch (`conftest.py`, data) are changed where they are.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path, PurePosixPath

SUITES = ".suites"
"""Folder in which each feature lists the files of its suite."""
GIT = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "GIT_AUTHOR_DATE": "1700000000 +0000",
       "GIT_COMMITTER_DATE": "1700000000 +0000"}


class Unusable(Exception):
    """Why a task or feature cannot be used."""


@dataclass(frozen=True)
class Feature:
    """Feature of a task: its number, or the rest of its folder's name, and the files that its suite consists of."""

    name: str
    folder: Path
    suite: tuple[str, ...] = ()


@dataclass(frozen=True)
class Task:
    """Task of a library."""

    library: str
    name: str
    folder: Path
    features: tuple[Feature, ...]

    @property
    def key(self) -> str:
        """Return a name that is unique in the dataset."""
        return f"{self.library}/{self.name}"

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield each pair of features, by name."""
        yield from combinations((feature.name for feature in self.features), 2)


def git(repo: Path, *words: str, text: str | None = None, index: Path | None = None, check: bool = True) -> str:
    """Run git and return its output; RuntimeError with git's message if it fails."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | GIT
    if index is not None:
        env["GIT_INDEX_FILE"] = str(index)
    done = subprocess.run(["git", *words], cwd=repo, env=env, input=text, text=True, capture_output=True, check=False,
                          errors="surrogateescape")
    if check and done.returncode:
        raise RuntimeError(f"git {words[0]}: {done.stderr.strip()[-300:]}")
    return done.stdout.strip()


def find_dataset(given: str | None) -> Path:
    """Return the dataset's folder: the given one, $COOPERBENCH, or `shared/cooperbench` beside the checkout; Unusable
    if it is not there."""
    root = Path(__file__).resolve().parent.parent
    chosen = given or os.environ.get("COOPERBENCH") or root.parent / "shared" / "cooperbench"
    path = Path(chosen).expanduser().resolve()
    if not next(tasks(path), None):
        raise Unusable(f"no task of CooperBench in {chosen}: name its folder with --data or COOPERBENCH")
    return path


def tasks(dataset: Path) -> Iterator[Task]:
    """Yield the tasks, by library and number."""
    for folder in sorted(dataset.glob("*/*"), key=lambda path: (path.parent.name, natural(path.name))):
        features = [Feature(path.parent.name.removeprefix("feature"), path.parent)
                    for path in folder.glob("*/feature.patch") if (path.parent / "tests.patch").is_file()]
        if features:
            yield Task(folder.parent.name, folder.name, folder,
                       tuple(sorted(features, key=lambda feature: natural(feature.name))))


def natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts numbers within names by value."""
    return [(int(part or 0), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]


@dataclass(frozen=True)
class TaskRepository:
    """Repository of a task: `main` is its base, and refs below `refs/cooperbench/` hold the rest.

    `gold/F`: the gold patch of F alone; `suite/F`: its suite alone; `feature/F`: both; `combined`: all features at
    once, without suites.
    """

    task: Task
    path: Path
    refused: tuple[tuple[str, str], ...]
    """Feature whose patches do not apply, and git's reason."""

    @property
    def has_combined(self) -> bool:
        """Return whether the dataset has a combined patch that applies."""
        return bool(self.rev("combined"))

    def rev(self, name: str) -> str:
        """Return the commit of a ref below `refs/cooperbench/`; '' if there is none."""
        return git(self.path, "rev-parse", "--verify", "--quiet", f"refs/cooperbench/{name}^{{commit}}", check=False)

    def merged(self, *names: str) -> str:
        """Return the tree of two or more commits merged one after another; '' if that conflicts."""
        head = self.rev(names[0])
        for name in names[1:]:
            env = {**os.environ, **GIT}
            done = subprocess.run(["git", "merge-tree", "--write-tree", head, self.rev(name)], cwd=self.path, env=env,
                                  capture_output=True, text=True, check=False)
            if done.returncode:
                return ""
            head = _commit(self.path, done.stdout.split()[0], f"Merge {name}", head, self.rev(name))
        return git(self.path, "rev-parse", f"{head}^{{tree}}")


def build(task: Task, path: Path) -> TaskRepository:
    """Build the repository of a task, or use the one that is there. Raises Unusable without a base."""
    if not (path / "built").exists():
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        _clone(task, path / "repo")
        refused = list(_add_features(task, path / "repo"))
        (path / "built").write_text("".join(f"{name} {reason}\n" for name, reason in refused))
    lines = [line.partition(" ") for line in (path / "built").read_text().splitlines()]
    refused = [(name, reason) for name, _, reason in lines]
    features = tuple(Feature(one.name, one.folder, _suite(path / "repo", one.name)) for one in task.features
                     if one.name not in dict(refused))
    return TaskRepository(Task(task.library, task.name, task.folder, features), path / "repo", tuple(refused))


def _clone(task: Task, repo: Path) -> None:
    for bundle in (task.folder / "base.bundle", task.folder.parent / "base.bundle"):
        if not bundle.is_file():
            continue
        heads = [line.split()[1] for line in git(task.folder, "bundle", "list-heads", str(bundle)).splitlines()]
        wanted = [head for head in heads if head == f"refs/heads/base/{task.name}"] or (
            heads if bundle.parent == task.folder and len(heads) == 1 else [])
        if wanted:
            git(task.folder, "init", "-q", "-b", "main", str(repo))
            git(repo, "fetch", "-q", str(bundle), f"{wanted[0]}:refs/cooperbench/base")
            git(repo, "reset", "-q", "--hard", "refs/cooperbench/base")
            for key, value in (("user.name", "A User"), ("user.email", "user@example.org"), ("gc.auto", "0")):
                git(repo, "config", key, value)
            return
    raise Unusable(f"{task.key}: no base.bundle with a branch base/{task.name}")


def _add_features(task: Task, repo: Path) -> Iterator[tuple[str, str]]:
    """Make the commits of the features; yield those whose patches do not apply."""
    base = git(repo, "rev-parse", "main")
    for feature in task.features:
        try:
            gold = _applied(repo, base, feature.folder / "feature.patch")
            tests = _applied(repo, base, feature.folder / "tests.patch")
        except RuntimeError as error:
            yield feature.name, str(error).replace("\n", " ")
            continue
        for name, tree in (("gold", gold), ("suite", _with_suite(repo, base, tests, base, feature.name)),
                           ("feature", _with_suite(repo, gold, tests, base, feature.name))):
            git(repo, "update-ref", f"refs/cooperbench/{name}/{feature.name}",
                _commit(repo, tree, f"Add feature {feature.name}", base))
    if (task.folder / "combined.patch").is_file():
        try:
            tree = _applied(repo, base, task.folder / "combined.patch")
        except RuntimeError as error:
            print(f"{task.key}: the combined patch does not apply: {error}", file=sys.stderr)
        else:
            git(repo, "update-ref", "refs/cooperbench/combined", _commit(repo, tree, "Add all features", base))


def _applied(repo: Path, base: str, patch: Path) -> str:
    index = repo / ".git" / "index-of-patch"
    git(repo, "read-tree", base, index=index)
    git(repo, "apply", "--cached", "--whitespace=nowarn", str(patch), index=index)
    return git(repo, "write-tree", index=index)


def _with_suite(repo: Path, tree: str, tests: str, base: str, name: str) -> str:
    """Return `tree` with the test files that `tests` changes under names of the feature's own, and their list."""
    index = repo / ".git" / "index-of-patch"
    git(repo, "read-tree", tree, index=index)
    changes = [line.split(maxsplit=5) for line in git(repo, "diff-tree", "-r", "--no-renames", base, tests).splitlines()
               if line.startswith(":")]
    changed = [(words[1], words[3], words[5]) for words in changes if words[4][0] != "D"]
    are_tests = [path for _, _, path in changed if _is_test(path)] or [
        path for _, _, path in changed if path.endswith(".py") and not path.endswith(("conftest.py", "__init__.py"))]
    suite = []
    for mode, blob, path in changed:
        kept = path if path not in are_tests else own_name(path, name)
        suite += [kept] if path in are_tests else []
        git(repo, "update-index", "--add", "--cacheinfo", f"{mode},{blob},{kept}", index=index)
    listed = git(repo, "hash-object", "-w", "--stdin", text="".join(f"{path}\n" for path in suite))
    git(repo, "update-index", "--add", "--cacheinfo", f"100644,{listed},{SUITES}/feature{name}", index=index)
    return git(repo, "write-tree", index=index)


def _is_test(path: str) -> bool:
    return re.fullmatch(r"test_.*\.py|.*_test\.py", PurePosixPath(path).name) is not None


def own_name(path: str, feature: str) -> str:
    """Return the name of a feature's own copy of a test file, which pytest collects as it does the original."""
    file = PurePosixPath(path)
    stem = file.stem
    own = f"{stem.removesuffix('_test')}_feature{feature}_test" if not stem.startswith("test_") and stem.endswith(
        "_test") else f"{stem}_feature{feature}"
    return str(file.with_name(f"{own}.py"))


def _suite(repo: Path, feature: str) -> tuple[str, ...]:
    return tuple(git(repo, "show", f"refs/cooperbench/suite/{feature}:{SUITES}/feature{feature}").splitlines())


def _commit(repo: Path, tree: str, message: str, *parents: str) -> str:
    return git(repo, "commit-tree", tree, "-m", message, *(word for parent in parents for word in ("-p", parent)))
