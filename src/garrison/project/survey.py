"""Survey: find the projects in a repository and its folders, and choose those that a gate should test. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from garrison.project import node_project, python_project
from garrison.project.ecosystems import (
    JAVA,
    LOCK_FILES,
    NODE,
    PYTHON,
    WRAPPERS,
    CommandPair,
    join,
    propose_by_marks,
)
from garrison.project.files import ProjectFiles, is_python_test, read_json, read_toml, table
from garrison.project.python_project import Version
from garrison.values import Value

MAX_DEPTH, MAX_NESTED = 3, 12
"""Maximum depth of folders searched for projects, and maximum number of projects named."""
_OWN_MANIFEST = {
    "pyproject.toml": PYTHON, "setup.py": PYTHON, "requirements.txt": PYTHON, "package.json": NODE,
    "Cargo.toml": "Rust", "go.mod": "Go", "pom.xml": JAVA, "build.gradle": JAVA, "build.gradle.kts": JAVA,
    "composer.json": "PHP", "Gemfile": "Ruby",
}
"""File that marks its folder as a project → ecosystem."""
_NO_PROJECTS = re.compile(
    r"(^|/)(\.[^/]*|node_modules|vendor|third_?party|external|deps|docs?|tests?|__tests__|spec|fixtures?|testdata|data|"
    r"templates?|examples?|typing-examples|samples?|demos?|bench(marks?)?|dist|build|requirements)(/|$)")


class Project(Value):
    """Project in a folder of a repository, '' for its top, with test candidates in the order of trial."""

    folder: str
    candidates: tuple[CommandPair, ...]

    @property
    def ecosystem(self) -> str:
        return self.candidates[0].ecosystem

    @property
    def is_tested(self) -> bool:
        return self.candidates[0].is_test

    @property
    def title(self) -> str:
        return f"{self.ecosystem} in {self.folder}" if self.folder else self.ecosystem


class Survey(Value):
    """Projects that the gate tests, and the others."""

    tested: tuple[Project, ...]
    """At the top, the first counts and others are joined if they pass; in folders, all count."""
    others: tuple[Project, ...]


def survey(files: ProjectFiles, versions: Sequence[Version] = ((3, 11),)) -> Survey:
    """Return the projects of a repository.

    Args:
        versions: of the `python3` on the PATH, then of each `python3.N` there.
    """
    folders = _nested(files)
    if folders and (plain := _plain_python(files, folders)):
        folders = [plain, *folders]
    own = frozenset(path for path in files.paths if not path.startswith(tuple(f"{folder}/" for folder in folders)))
    top = _projects(ProjectFiles(own, files.texts), "", versions)
    nested = [project for folder in folders for project in _projects(files.below(folder), folder, versions)[:1]]
    for chosen in ([each for each in top if each.is_tested], [each for each in nested if each.is_tested], top[:1],
                   nested[:1]):
        if chosen:
            return Survey(tuple(chosen), tuple(each for each in [*top, *nested] if each not in chosen))
    return Survey((), ())


def setup_key(files: ProjectFiles, setup: str | None) -> list[str]:
    """Return the files whose change triggers a set-up: lock files and manifests, and files that it names."""
    if not setup:
        return []
    named = [word for word in re.findall(r"[\w./-]+", setup) if word in files.paths and "." in word]
    folders = ["", *(f"{folder}/" for folder in re.findall(r"\(cd ([\w./-]+) &&", setup))]
    known = [f"{folder}{name}" for folder in folders for name in LOCK_FILES if f"{folder}{name}" in files.paths]
    return list(dict.fromkeys([*known, *named]))


def _projects(files: ProjectFiles, folder: str, versions: Sequence[Version]) -> list[Project]:
    """Return the projects of one folder, those with tests first; a task runner alone counts."""
    found: dict[str, list[CommandPair]] = {}
    for candidate in [*python_project.propose_python(files, versions), *node_project.propose_node(files),
                      *propose_by_marks(files)]:
        found.setdefault(candidate.ecosystem, []).append(candidate)
    for name, candidates in found.items():  # a gate without tests must not pass if tests fail
        found[name] = [each for each in candidates if each.is_test] or candidates
    wrappers = [each for name in WRAPPERS for each in found.get(name, ()) if each.is_test]
    languages = [name for name in found if name not in WRAPPERS and found[name][0].is_test]
    if languages:
        found[languages[0]] += wrappers
        found = {name: ways for name, ways in found.items() if name not in WRAPPERS}
    projects = [Project(folder, tuple(ways)) for ways in found.values()]
    return sorted(projects, key=lambda project: not project.is_tested)


def _nested(files: ProjectFiles) -> list[str]:
    """Return the folders with a project that is not a member of one above."""
    top = {ecosystem for name, ecosystem in _OWN_MANIFEST.items() if files.has(name)}
    members = _kinds_with_members(files)
    found: dict[str, str] = {}
    for path in sorted(files.paths, key=lambda path: (path.count("/"), path)):
        folder, _, name = path.rpartition("/")
        ecosystem = _OWN_MANIFEST.get(name)
        if not folder or ecosystem is None or path.count("/") > MAX_DEPTH or _NO_PROJECTS.search(folder):
            continue
        if ecosystem in members or (name == "requirements.txt" and ecosystem in top) or not _is_project(files, path):
            continue
        # paths are sorted by depth, so the outermost folder wins
        if not any(folder == other or folder.startswith(f"{other}/") for other in found):
            found[folder] = ecosystem
    return list(found)[:MAX_NESTED]


def _plain_python(files: ProjectFiles, folders: Sequence[str]) -> str:
    """Return the folder, apart from other projects, with all Python tests but no manifest; '' if none.

    A package does not count: its modules are imported from its parent folder.
    """
    tests = [path for path in files.paths if is_python_test(path)
             and not path.startswith(tuple(f"{folder}/" for folder in folders))]
    tops = {path.partition("/")[0] if "/" in path else "" for path in tests}
    is_at_top = any("/" not in path and (path.endswith((".py", ".ini", ".cfg")) or path == "Pipfile" or
                                         _OWN_MANIFEST.get(path) == PYTHON) for path in files.paths)
    top = "" if is_at_top or len(tops) != 1 else tops.pop()
    return "" if _NO_PROJECTS.search(top) or f"{top}/__init__.py" in files.paths else top


def _is_project(files: ProjectFiles, path: str) -> bool:
    """Return whether a manifest contains more than tool settings or the type of modules."""
    if path.endswith("pyproject.toml"):
        document = read_toml(files.text(path))
        return bool(table(document, "project") or table(document, "build-system") or table(document, "tool", "poetry"))
    if path.endswith("package.json"):
        package = read_json(files.text(path))
        return bool(table(package, "scripts") or table(package, "dependencies") or package.get("name"))
    return True


def _kinds_with_members(files: ProjectFiles) -> set[str]:
    """Return the ecosystems whose top project includes those in folders as members."""
    members = {"Rust"} if files.has("Cargo.toml") else set()
    if files.has("pom.xml", "build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts", "gradlew"):
        members.add(JAVA)
    if read_json(files.text("package.json")).get("workspaces") or files.has("pnpm-workspace.yaml"):
        members.add(NODE)
    if files.has("go.work"):
        members.add("Go")
    if table(read_toml(files.text("pyproject.toml")), "tool", "uv", "workspace"):
        members.add(PYTHON)
    return members


def propose_gate(found: Survey) -> CommandPair | None:
    """Return the most likely way to test a whole repository, untried; None if unknown."""
    tested = found.tested[:1] if found.tested and not found.tested[0].folder else found.tested
    return join([project.candidates[0].in_folder(project.folder) for project in tested]) if tested else None


CONFLICT_MARKERS = CommandPair("no build system", "a search for conflict markers, since nothing else is known",
                               "! git grep -nE '^(<<<<<<<|>>>>>>>) '", is_test=False)
"""Check for an unknown kind of repository."""
