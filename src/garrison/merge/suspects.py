"""Suspects of a red run: the likelihood of its log for each bad entry, relative to the others. Pure.

The log names tests, files and packages (`failing_tests`); an entry touches files. The closer the two are, the larger
the likelihood ratio. A ratio only influences which sets are tested next: rejecting an entry still needs its own red
run. So bounding the ratios suffices against a forged log.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from garrison.merge.failing_tests import Failures

NAMED = 6.0
"""Ratio of an entry that touches a file named in the log, or with a failing test."""
RELATED = 3.0
"""Ratio of an entry that touches the subject of such a test, by its name, or its package."""
NEAR = 1.5
"""Ratio of an entry that touches another file of the same folder."""
UNRELATED = 0.5
"""Ratio of an entry that touches none of these while another entry does."""
KNOWN_FLAKY = 0.3
"""Factor for all entries if every failing test is known to fail on good trees as well."""
_MAX_PATHS = 2000
"""Maximum number of files compared per entry."""
_DECORATION = re.compile(r"^(?:test|tests|spec|it)[_.-]|[_.-](?:test|tests|spec|it)$|(?<=[a-z0-9])(?:Tests?|Spec|IT)$",
                         re.IGNORECASE)
_COMMON = frozenset({"", "__init__", "init", "main", "mod", "lib", "index", "conftest", "test", "tests", "spec", "src",
                     "app", "setup", "core", "unit"})
"""Names too common to be informative."""
_MAX_FOLDERS = 30
"""Maximum number of folders of a path compared."""
_MIN_STEM = 3
"""Minimum length of an informative name."""
_WORDS = re.compile(r"[^\w$-]+")


class _Clues(Value):
    """Names from a log, in the forms in which they are compared with paths."""

    files: _Paths
    folders: frozenset[str]
    modules: _Paths
    """Modules as paths without suffix."""
    packages: _Paths
    stems: frozenset[str]


class _Paths(Value):
    """Paths from a log, possibly longer than the repository's (absolute) or shorter (relative to a folder)."""

    names: frozenset[str]
    ends: frozenset[str]

    @classmethod
    def of(cls, names: Iterable[str]) -> _Paths:
        known = frozenset(names)
        return cls(known, frozenset(end for name in known for end in _ends(name)))

    def name_longer(self, path: str) -> bool:
        return path in self.ends

    def name_shorter(self, path: str) -> bool:
        """Return whether `path` equals one of them, or ends with one that has a folder."""
        return any(end in self.names and (end == path or "/" in end) for end in _ends(path))


def _ends(path: str) -> Iterator[str]:
    """Return the path and its suffixes without leading folders."""
    for _ in range(_MAX_FOLDERS):
        yield path
        path = path.partition("/")[2]
        if not path:
            return


def suspect(failures: Failures, touched: Mapping[str, Collection[str]], flaky: Collection[str] = (),
            ) -> dict[str, float]:
    """Return the likelihood ratio of the log for each entry, {} if the log is not informative.

    Args:
        touched: entry → paths of the files that it changes.
        flaky: tests known to have failed on trees that also passed.
    """
    factor = KNOWN_FLAKY if failures.tests and set(failures.tests) <= set(flaky) else 1.0
    clues = _read_clues(failures)
    closest = {name: max((_closeness(path, clues) for path in sorted(paths)[:_MAX_PATHS]), default=UNRELATED)
               for name, paths in touched.items()}
    if all(ratio == UNRELATED for ratio in closest.values()):
        return dict.fromkeys(touched, factor) if factor != 1.0 else {}
    return {name: factor * ratio for name, ratio in closest.items()}


def _read_clues(failures: Failures) -> _Clues:
    in_tests = [test.partition("::")[0] for test in failures.tests if "::" in test and "/" in test.partition("::")[0]]
    files = tuple(dict.fromkeys(_tidy(name) for name in (*in_tests, *failures.files)))
    modules = {part for test in failures.tests for part in _modules(test)}
    stems = {_subject(PurePosixPath(name).stem) for name in files}
    stems |= {_subject(word) for test in failures.tests for word in _WORDS.split(test)}
    folders = {name.rpartition("/")[0] for name in files if "/" in name and not name.startswith("/")}
    stems = {stem for stem in stems if len(stem) >= _MIN_STEM} - _COMMON
    return _Clues(_Paths.of(files), frozenset(folders), _Paths.of(modules), _Paths.of(failures.packages),
                  frozenset(stems))


def _tidy(name: str) -> str:
    name = name.replace("\\", "/")
    while name.startswith("./"):
        name = name[2:]
    return name


def _modules(test: str) -> Iterable[str]:
    """Return the paths that a dotted name in a test's name may stand for: `a.b.C.test_d` may be in a/b."""
    for word in re.findall(r"[\w$]+(?:\.[\w$]+)+", test):
        parts = word.split(".")
        for length in range(2, min(len(parts), 12) + 1):
            yield "/".join(parts[:length])
        if parts[0] not in _COMMON:
            yield parts[0]


def _subject(stem: str) -> str:
    """Return the subject of a test from its name: `test_parser`, `parser_test`, `ParserTest` → parser."""
    return _DECORATION.sub("", stem.partition(".")[0] if not stem.startswith(".") else stem).lower()


def _closeness(path: str, clues: _Clues) -> float:
    """Return the ratio for one touched file."""
    stem, folder = PurePosixPath(path).stem, path.rpartition("/")[0]
    module = f"{folder}/{stem}" if folder else stem
    if clues.files.name_longer(path) or clues.files.name_shorter(path) or clues.modules.name_shorter(module) or \
            ("/" in module and clues.modules.name_longer(module)):
        return NAMED
    if _subject(stem) in clues.stems or (folder and clues.packages.name_longer(folder)):
        return RELATED
    return NEAR if folder in clues.folders or clues.modules.name_shorter(folder) else UNRELATED


def describe(ratio: float) -> str:
    """Return a ratio in words."""
    if ratio >= NAMED:
        return "touches a file that the failing tests name"
    if ratio >= RELATED:
        return "touches what the failing tests are about"
    if ratio > 1.0:
        return "touches a neighbour of the failing files"
    return "touches nothing that the log names" if ratio == UNRELATED else "fits tests that are known to be flaky"
