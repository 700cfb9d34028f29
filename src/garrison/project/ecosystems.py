"""Ecosystems: ways to build and test projects whose build system alone determines them. Pure.

`ECOSYSTEMS` contains all knowledge about them: rows of one ecosystem are candidates, in order, if all their marks
exist. Python and Node have separate modules, since their projects differ too much for marks. Task runners (just, make)
come last, for languages that are not listed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from garrison.project.files import ProjectFiles
from garrison.values import Value, replace

PYTHON, NODE, JAVA = "Python", "Node", "Java"
WRAPPERS = ("just", "Make")
"""Task runners: they usually run the tools of the project's language."""


class CommandPair(Value):
    """Command that prepares a fresh worktree, and command that tests it.

    Candidates of a project are tried in order: its own tool first, then commands with fewer requirements.
    """

    ecosystem: str
    why: str
    """What it is based on, in a few words: `uv.lock`, `.venv with the extra tests`."""
    gate: str
    setup: str = ""
    makes: tuple[str, ...] = ()
    """Files that set-up or gate leave in the worktree and git should ignore."""
    is_test: bool = True
    """False if the gate runs no tests, since none are known."""
    shows_tests: bool = False
    """Set if its log must show tests that ran: tox and nox also pass if an environment runs none."""
    install: str = ""
    """Command that adds packages to the set-up; '' if none."""

    def with_packages(self, packages: Sequence[str]) -> CommandPair | None:
        """Return a copy with further packages that its tests need; None if it cannot install any."""
        if not self.install or not packages:
            return None
        added = f"{self.install} {' '.join(shlex.quote(name) for name in packages)}"
        return replace(self, setup=f"{self.setup} && {added}" if self.setup else added,
                       why=f"{self.why} and {', '.join(packages)}")

    def in_folder(self, folder: str) -> CommandPair:
        """Return a copy for a project in a folder of the repository, run from the top."""
        if not folder:
            return self
        inside = f"cd {shlex.quote(folder)} && "
        return replace(self, gate=f"({inside}{self.gate})", setup=f"({inside}{self.setup})" if self.setup else "",
                       makes=tuple(f"{folder}/{name}" for name in self.makes))


def join(parts: Sequence[CommandPair]) -> CommandPair:
    """Return a pair that runs several pairs in order."""
    if len(parts) == 1:
        return parts[0]
    return CommandPair(" and ".join(dict.fromkeys(part.ecosystem for part in parts)), "all of them",
                       " && ".join(part.gate for part in parts),
                       " && ".join(part.setup for part in parts if part.setup),
                       tuple(name for part in parts for name in part.makes), any(part.is_test for part in parts))


class Ecosystem(Value):
    """Candidate and its marks.

    A mark is a file's name or pattern (`*` matches `/` too); `PATTERN~REGEX` requires a matching line in it; `A|B` is
    either of two marks, `!MARK` requires its absence.
    """

    ecosystem: str
    marks: tuple[str, ...]
    gate: str
    setup: str = ""
    makes: tuple[str, ...] = ()
    is_test: bool = True


_TESTED = "CMakeLists.txt~(?i:enable_testing|include.{1,3}CTest|add_test)|*/CMakeLists.txt~(?i:enable_testing|add_test)"

ECOSYSTEMS: tuple[Ecosystem, ...] = (
    Ecosystem("Rust", ("Cargo.toml", "Cargo.lock", "Cargo.toml~^\\[workspace\\]"), "cargo test --workspace --locked",
              "cargo fetch --locked", ("target",)),
    Ecosystem("Rust", ("Cargo.toml", "Cargo.lock"), "cargo test --locked", "cargo fetch --locked", ("target",)),
    Ecosystem("Rust", ("Cargo.toml",), "cargo test", "cargo fetch", ("target",)),
    Ecosystem("Go", ("go.mod", "vendor/modules.txt"), "go test ./..."),
    Ecosystem("Go", ("go.mod",), "go test ./...", "go mod download"),
    Ecosystem("Go", ("go.work",), "go list -m -f '{{.Dir}}/...' | xargs go test"),
    Ecosystem(JAVA, ("gradlew",), "./gradlew test", makes=("build", ".gradle")),
    Ecosystem(JAVA, ("build.gradle|build.gradle.kts",), "gradle test", makes=("build", ".gradle")),
    Ecosystem(JAVA, ("mvnw", "pom.xml"), "./mvnw -q -B test", makes=("target",)),
    Ecosystem(JAVA, ("pom.xml",), "mvn -q -B test", makes=("target",)),
    Ecosystem("Ruby", ("Gemfile", ".rspec|*_spec.rb"), "bundle exec rspec", "bundle install"),
    Ecosystem("Ruby", ("Gemfile", "Rakefile"), "bundle exec rake test", "bundle install"),
    Ecosystem("PHP", ("composer.json", "phpunit.xml|phpunit.xml.dist|phpunit.dist.xml"), "vendor/bin/phpunit",
              "composer install --no-interaction", ("vendor",)),
    Ecosystem("PHP", ("composer.json~\"test\" *:",), "composer test", "composer install --no-interaction", ("vendor",)),
    Ecosystem(".NET", ("*.sln|*.slnx|*.csproj|*.fsproj",), "dotnet test", "dotnet restore", ("bin", "obj")),
    # if the project tracks a build/ itself, ours is _build
    Ecosystem("CMake", ("CMakeLists.txt", _TESTED, "!build/*"),
              "cmake --build build && ctest --test-dir build --output-on-failure", "cmake -S . -B build", ("build",)),
    Ecosystem("CMake", ("CMakeLists.txt", _TESTED),
              "cmake --build _build && ctest --test-dir _build --output-on-failure", "cmake -S . -B _build",
              ("_build",)),
    Ecosystem("CMake", ("CMakeLists.txt", "!build/*"), "cmake --build build", "cmake -S . -B build", ("build",),
              is_test=False),
    Ecosystem("Meson", ("meson.build", "!build/*"), "meson test -C build", "meson setup build", ("build",)),
    Ecosystem("just", ("justfile~^test\\b|Justfile~^test\\b|.justfile~^test\\b",), "just test"),
    Ecosystem("Make", ("configure", "Makefile.in|Makefile.am"), "make check", "./configure"),
    Ecosystem("Make", ("configure.ac|configure.in", "Makefile.am"), "make check", "autoreconf -fi && ./configure"),
    Ecosystem("Make", ("Makefile~^test *:|GNUmakefile~^test *:|makefile~^test *:",), "make test"),
    Ecosystem("Make", ("Makefile~^tests *:|GNUmakefile~^tests *:|makefile~^tests *:",), "make tests"),
    Ecosystem("Make", ("Makefile~^check *:|GNUmakefile~^check *:|makefile~^check *:",), "make check"),
    Ecosystem("Make", ("Makefile|GNUmakefile|makefile",), "make", is_test=False),
)
"""Candidates with marks, in order of precedence."""

LOCK_FILES = ("uv.lock", "poetry.lock", "pdm.lock", "Pipfile.lock", "requirements.txt", "requirements-dev.txt",
              "pyproject.toml", "setup.py", "setup.cfg", "tox.ini", "tox.toml", "noxfile.py", "package-lock.json",
              "npm-shrinkwrap.json", "pnpm-lock.yaml", "yarn.lock", "bun.lock", "bun.lockb", "package.json",
              "Cargo.lock", "Cargo.toml", "go.mod", "go.sum", "Gemfile.lock", "Gemfile", "composer.lock",
              "composer.json", "CMakeLists.txt", "meson.build", "configure.ac", "Makefile.am")
"""Files whose change triggers a set-up, in addition to those that it names."""


def propose_by_marks(files: ProjectFiles) -> list[CommandPair]:
    return [CommandPair(row.ecosystem, row.marks[0].partition("~")[0].partition("|")[0], row.gate, row.setup, row.makes,
                        row.is_test) for row in ECOSYSTEMS if all(_is_there(mark, files) for mark in row.marks)]


def _is_there(mark: str, files: ProjectFiles) -> bool:
    if mark.startswith("!"):
        return not _is_there(mark[1:], files)
    return any(files.any(pattern, regex) for pattern, regex in _alternatives(mark))


def _alternatives(either: str) -> list[tuple[str, str]]:
    """Return the (pattern, regex) of each alternative; a `|` inside parentheses belongs to a regex."""
    parts = re.split(r"\|(?![^(]*\))", either)
    return [(pattern, regex) for pattern, _, regex in (part.partition("~") for part in parts)]
