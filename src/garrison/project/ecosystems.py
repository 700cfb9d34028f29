"""Ecosystems: by which files a project's build system shows, and the gate and set-up that it usually has. Pure.

`ECOSYSTEMS` is the whole knowledge. Rows of one ecosystem are in order of precedence: the first whose marks are all
there counts. Rows of task runners (just, make) come last, for projects of a language that is not listed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase

from garrison.frozen import frozen


@frozen
class ProjectFiles:
    """Files of a project, as far as marks look at them."""

    paths: frozenset[str]
    """Tracked files, relative to the top directory."""
    texts: Mapping[str, str]
    """Path → text, of those that a mark looks into."""


@frozen
class Row:
    """A way to build and test a project.

    A mark is a file's name or pattern (`*` matches `/` too); `PATTERN~REGEX` wants a line in it that matches; `A|B` is
    either of two marks.
    """

    ecosystem: str
    marks: tuple[str, ...]
    gate: str
    setup: str = ""
    makes: tuple[str, ...] = ()
    """What set-up or gate leave in the worktree, and git should ignore."""
    is_test: bool = True
    """False if the gate runs no tests: the project has none that are known."""


PYTHON, NODE, JAVA = "Python", "Node", "Java"
_PYTEST = ("pytest.ini|conftest.py|*/conftest.py|pyproject.toml~pytest|setup.cfg~pytest|tox.ini~pytest"
           "|requirements*.txt~^pytest|*test_*.py~^(import pytest|from pytest|def test_)")
_VENV = "python3 -m venv .venv && echo '*' > .venv/.gitignore && .venv/bin/pip install -q"
"""Begins a set-up with an environment of the worktree's own, which git ignores."""
_POETRY = "POETRY_VIRTUALENVS_IN_PROJECT=1 poetry"
_PROJECT = "pyproject.toml~^\\[(project|build-system)\\]|setup.py"

ECOSYSTEMS: tuple[Row, ...] = (
    Row(PYTHON, ("uv.lock", _PYTEST), "uv run --no-sync pytest -q", "uv sync --locked"),
    Row(PYTHON, ("uv.lock",), "uv run --no-sync python -m unittest -q", "uv sync --locked"),
    Row(PYTHON, ("poetry.lock", _PYTEST), f"{_POETRY} run pytest -q", f"{_POETRY} install --no-interaction",
        (".venv",)),
    Row(PYTHON, ("tox.ini|pyproject.toml~^\\[tool\\.tox",), "tox -q", makes=(".tox",)),
    Row(PYTHON, ("noxfile.py",), "nox", makes=(".nox",)),
    Row(PYTHON, (_PYTEST, _PROJECT, "pyproject.toml~^tests *= *\\["), ".venv/bin/python -m pytest -q",
        f"{_VENV} -e '.[tests]' pytest"),
    Row(PYTHON, (_PYTEST, _PROJECT, "pyproject.toml~^test *= *\\["), ".venv/bin/python -m pytest -q",
        f"{_VENV} -e '.[test]' pytest"),
    Row(PYTHON, (_PYTEST, _PROJECT, "pyproject.toml~^dev *= *\\["), ".venv/bin/python -m pytest -q",
        f"{_VENV} -e '.[dev]' pytest"),
    Row(PYTHON, (_PYTEST, _PROJECT), ".venv/bin/python -m pytest -q", f"{_VENV} -e . pytest"),
    Row(PYTHON, (_PYTEST, "requirements-dev.txt"), ".venv/bin/python -m pytest -q",
        f"{_VENV} -r requirements-dev.txt pytest"),
    Row(PYTHON, (_PYTEST, "requirements.txt"), ".venv/bin/python -m pytest -q", f"{_VENV} -r requirements.txt pytest"),
    Row(PYTHON, (_PYTEST,), "python3 -m pytest -q"),
    Row(PYTHON, ("*test_*.py~unittest",), "python3 -m unittest -q"),
    Row(PYTHON, (f"{_PROJECT}|*.py",), "python3 -m compileall -q .", is_test=False),
    Row(NODE, ("package.json~\"test\" *:", "pnpm-lock.yaml"), "pnpm test", "pnpm install --frozen-lockfile",
        ("node_modules",)),
    Row(NODE, ("package.json~\"test\" *:", "yarn.lock", ".yarnrc.yml"), "yarn test", "yarn install --immutable",
        ("node_modules",)),
    Row(NODE, ("package.json~\"test\" *:", "yarn.lock"), "yarn -s test", "yarn install --frozen-lockfile",
        ("node_modules",)),
    Row(NODE, ("package.json~\"test\" *:", "bun.lock|bun.lockb"), "bun run test", "bun install --frozen-lockfile",
        ("node_modules",)),
    Row(NODE, ("package.json", "bun.lock|bun.lockb"), "bun test", "bun install --frozen-lockfile", ("node_modules",)),
    Row(NODE, ("package.json~\"test\" *:", "package-lock.json|npm-shrinkwrap.json"), "npm test", "npm ci",
        ("node_modules",)),
    Row(NODE, ("package.json~\"test\" *:", "package.json~\"(devD|d)ependencies\" *:"), "npm test", "npm install",
        ("node_modules",)),
    Row(NODE, ("package.json~\"test\" *:",), "npm test"),
    Row("Rust", ("Cargo.toml", "Cargo.lock"), "cargo test --locked", "cargo fetch --locked", ("target",)),
    Row("Rust", ("Cargo.toml",), "cargo test", "cargo fetch", ("target",)),
    Row("Go", ("go.mod",), "go test ./...", "go mod download"),
    Row(JAVA, ("gradlew",), "./gradlew test", makes=("build", ".gradle")),
    Row(JAVA, ("build.gradle|build.gradle.kts",), "gradle test", makes=("build", ".gradle")),
    Row(JAVA, ("mvnw", "pom.xml"), "./mvnw -q -B test", makes=("target",)),
    Row(JAVA, ("pom.xml",), "mvn -q -B test", makes=("target",)),
    Row("Ruby", ("Gemfile", ".rspec|*_spec.rb"), "bundle exec rspec", "bundle install"),
    Row("Ruby", ("Gemfile", "Rakefile"), "bundle exec rake test", "bundle install"),
    Row("PHP", ("composer.json", "phpunit.xml|phpunit.xml.dist|phpunit.dist.xml"), "vendor/bin/phpunit",
        "composer install --no-interaction", ("vendor",)),
    Row("PHP", ("composer.json~\"test\" *:",), "composer test", "composer install --no-interaction", ("vendor",)),
    Row(".NET", ("*.sln|*.slnx|*.csproj|*.fsproj",), "dotnet test", "dotnet restore", ("bin", "obj")),
    Row("CMake", ("CMakeLists.txt",), "cmake --build build && ctest --test-dir build --output-on-failure",
        "cmake -S . -B build", ("build",)),
    Row("just", ("justfile~^test\\b|Justfile~^test\\b|.justfile~^test\\b",), "just test"),
    Row("Make", ("Makefile~^test *:|GNUmakefile~^test *:|makefile~^test *:",), "make test"),
    Row("Make", ("Makefile~^check *:|GNUmakefile~^check *:|makefile~^check *:",), "make check"),
)
"""Each way that is known, in order of precedence."""

LOCK_FILES = ("uv.lock", "poetry.lock", "requirements.txt", "requirements-dev.txt", "pyproject.toml", "setup.py",
              "package-lock.json", "npm-shrinkwrap.json", "pnpm-lock.yaml", "yarn.lock", "bun.lock", "bun.lockb",
              "package.json", "Cargo.lock", "Cargo.toml", "go.mod", "go.sum", "Gemfile.lock", "Gemfile",
              "composer.lock", "composer.json", "CMakeLists.txt")
"""Files whose change makes a set-up worth another run."""


def detect(files: ProjectFiles) -> list[Row]:
    """Return the way of each ecosystem that a project shows, in order of precedence; a gate without tests last."""
    found: dict[str, Row] = {}
    for row in ECOSYSTEMS:
        if row.ecosystem not in found and all(_is_there(mark, files) for mark in row.marks):
            found[row.ecosystem] = row
    return sorted(found.values(), key=lambda row: not row.is_test)


def setup_key(row: Row, files: ProjectFiles) -> list[str]:
    """Return the files of a project whose change makes its set-up run again."""
    return [name for name in LOCK_FILES if name in files.paths] if row.setup else []


def patterns_read() -> list[str]:
    """Return the patterns of files whose text some mark looks into."""
    marks = [mark for row in ECOSYSTEMS for either in row.marks for mark in _alternatives(either)]
    return sorted({pattern for pattern, regex in marks if regex})


def _is_there(either: str, files: ProjectFiles) -> bool:
    for pattern, regex in _alternatives(either):
        for path in files.paths:
            if fnmatchcase(path, pattern) and (
                    not regex or re.search(regex, files.texts.get(path, ""), re.MULTILINE)):
                return True
    return False


def _alternatives(either: str) -> list[tuple[str, str]]:
    """Return the (pattern, regex) of each alternative; a `|` inside parentheses belongs to a regex."""
    parts = re.split(r"\|(?![^(]*\))", either)
    return [(pattern, regex) for pattern, _, regex in (part.partition("~") for part in parts)]
