"""Files of a project that reveal its build system, and readers of their formats that never fail. Pure.

The files are untrusted: unreadable content counts as absent.
"""

from __future__ import annotations

import ast
import configparser
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from garrison.values import Value


class ProjectFiles(Value):
    """Tracked files of a repository, or of one of its folders."""

    paths: frozenset[str]
    """Relative to the top directory, or to the folder."""
    texts: Mapping[str, str]
    """Path → text, for files accepted by `is_read`."""

    def text(self, path: str) -> str:
        """Return a file's text; '' if it is absent or was not read."""
        return self.texts.get(path, "") if path in self.paths else ""

    def has(self, *names: str) -> bool:
        return any(name in self.paths for name in names)

    def any(self, pattern: str, line: str = "") -> bool:
        """Return whether a path matches `pattern` (`*` also matches `/`) and, if given, a line in it matches `line`."""
        paths = (path for path in self.paths if fnmatchcase(path, pattern)) if "*" in pattern else \
            (pattern,) if pattern in self.paths else ()
        return any(not line or re.search(line, self.texts.get(path, ""), re.MULTILINE) for path in paths)

    def below(self, folder: str) -> ProjectFiles:
        """Return the files of a folder, relative to it."""
        if not folder:
            return self
        start = f"{folder}/"
        return ProjectFiles(frozenset(path[len(start):] for path in self.paths if path.startswith(start)),
                            {path[len(start):]: text for path, text in self.texts.items() if path.startswith(start)})


MANIFESTS = frozenset({
    "pyproject.toml", "setup.py", "setup.cfg", "tox.ini", "tox.toml", "noxfile.py", "pytest.ini", ".pytest.ini",
    "Pipfile", "package.json", "pnpm-lock.yaml", "pnpm-workspace.yaml", "Cargo.toml", "go.mod", "go.work",
    "CMakeLists.txt", "Makefile", "makefile", "GNUmakefile", "justfile", "Justfile", ".justfile", "composer.json",
    "Rakefile", "meson.build", "configure.ac", "deno.json",
})
"""Names of files to read, at any depth."""
_REQUIREMENTS = re.compile(r"(^|/)([\w.-]*requirements[\w.-]*|requirements/[\w.-]+)\.(txt|in)$")
_TEST_TEXTS = re.compile(r"(^|/)(test_[^/]*|[^/]*_test|tests?|conftest)\.py$")


def is_manifest(path: str) -> bool:
    return path.rpartition("/")[2] in MANIFESTS or _REQUIREMENTS.search(path) is not None


def is_python_test(path: str) -> bool:
    """Return whether a file's name is that of Python tests; its first lines tell which runner they need."""
    return _TEST_TEXTS.search(path) is not None


# ------------------------------------------------------------------------------------------------------------ formats


def read_toml(text: str) -> Mapping[str, object]:
    """Parse a TOML document; empty if invalid."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError):
        return {}


def read_json(text: str) -> Mapping[str, object]:
    """Parse a JSON object; empty if invalid."""
    try:
        return table(json.loads(text))
    except (ValueError, RecursionError):
        return {}


def read_ini(text: str) -> configparser.RawConfigParser:
    """Parse an INI document; empty if invalid."""
    parser = configparser.RawConfigParser(strict=False, allow_no_value=True, interpolation=None)
    try:
        parser.read_string(text)
    except (configparser.Error, ValueError):
        return configparser.RawConfigParser()
    return parser


def table(value: object, *keys: str) -> Mapping[str, object]:
    """Return the table below `keys`; empty if there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def strings(value: object) -> tuple[str, ...]:
    """Return the strings of a list; a string counts as its lines."""
    if isinstance(value, str):
        return tuple(line.strip() for line in value.splitlines() if line.strip())
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list | tuple) else ()


def python_literals(text: str, names: Sequence[str]) -> Mapping[str, object]:
    """Return literal keyword arguments and assignments in a Python source, for `names`."""
    try:
        # parsed, never run: this set-up script is untrusted
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    assigned: dict[str, object] = {}
    found: dict[str, object] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            assigned[node.targets[0].id] = _literal(node.value, assigned)
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg is not None and node.arg in names:
            found[node.arg] = _literal(node.value, assigned)
    return {name: value for name, value in {**assigned, **found}.items() if name in names and value is not None}


def _literal(node: ast.expr, assigned: Mapping[str, object]) -> object:
    """Return the value of a literal, of a name assigned to one, or of the readable parts of a list or dictionary."""
    if isinstance(node, ast.Name):
        return assigned.get(node.id)
    if isinstance(node, ast.Dict):
        return {key.value: _literal(value, assigned) for key, value in zip(node.keys, node.values, strict=True)
                if isinstance(key, ast.Constant) and isinstance(key.value, str)}
    if isinstance(node, ast.List | ast.Tuple):
        items = [_literal(item, assigned) for item in node.elts]
        return [item for item in items if item is not None]
    try:
        value: object = ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):
        return None
    return value
