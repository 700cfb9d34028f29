"""Classifier of a change: files that a project hardly ever wants in its history. Pure.

It knows names, sizes and the beginning of each file, whoever made the change. `processes.unfinished` asks it about what
an agent left uncommitted, before garrison commits that for it.
"""

from __future__ import annotations

import re
from collections import Counter
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from garrison.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from garrison.config import GuardConfig

HEAD_BYTES = 4096
"""Bytes of a file's beginning that tell what it is."""


class FindingKind(StrEnum):
    """What is wrong with a file of a change."""

    SECRET = "secret"
    """A private key, or a file of environment variables or passwords."""
    DUMP = "dump"
    """The memory of a program that crashed."""
    INSTALLED = "installed"
    """A folder of installed modules, or a virtual environment."""
    NAME = "name"
    """A name that the configuration refuses."""
    SIZE = "size"
    MANY = "many"
    """More new files than the limit."""


@frozen
class ChangedFile:
    """One file of a change, as it is after it."""

    name: str
    size: int = 0
    """Bytes."""
    is_new: bool = True
    head: bytes = b""
    """Its first `HEAD_BYTES`, empty if they are not known."""


@frozen
class Finding:
    """One file, or all files below one folder (then `name` ends with a slash)."""

    kind: FindingKind
    name: str
    size: int = 0
    """Bytes of the file."""
    count: int = 1
    """Files of it in the change."""


_FOLDERS = frozenset({"node_modules", "bower_components", ".venv", ".tox", ".nox", ".env", ".direnv", ".terraform"})
_ENVIRONMENT = "pyvenv.cfg"
"""File at the top of a virtual environment, whatever its folder is called."""
_DUMP = re.compile(r"(?:vg)?core(?:\.[0-9]+)?")
_ENV_FILE = re.compile(r"\.env(?:rc|\..+)?")
_ENV_EXAMPLE = re.compile(r"\.env\..*\b(?:example|sample|template|dist|defaults?)")
_SECRETS = ("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "id_ecdsa_sk", "id_ed25519_sk", "*.key", "*.p12", "*.pfx",
            ".netrc", ".pypirc", ".git-credentials")
_PRIVATE_KEY = re.compile(rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----")


def classify(files: Iterable[ChangedFile], limits: GuardConfig) -> list[Finding]:
    """Return what is wrong with a change, folders first, then files by name; a name that `limits.allow` matches passes.

    Files that the project tracks already pass by their names: somebody decided on them before.
    """
    considered = sorted((file for file in files if not matches(file.name, limits.allow)), key=lambda file: file.name)
    environments = {file.name.removesuffix(_ENVIRONMENT) for file in considered
                    if file.is_new and file.name.endswith(f"/{_ENVIRONMENT}")}
    folders: Counter[str] = Counter()
    found: list[Finding] = []
    others = 0
    for file in considered:
        folder = _installed(file.name, environments) if file.is_new else ""
        if folder:
            folders[folder] += 1
        elif (kind := _kind(file, limits)) is not None:
            found.append(Finding(kind, file.name, file.size))
        else:
            others += file.is_new
    installed = [Finding(FindingKind.INSTALLED, name, count=count) for name, count in sorted(folders.items())]
    is_many = limits.max_files is not None and others > limits.max_files
    return [*installed, *found, *([_many(considered, others)] if is_many else [])]


def _many(files: Sequence[ChangedFile], count: int) -> Finding:
    """Return the finding of too many new files, named by the top folder that holds most of them."""
    folders = Counter(f"{parts[0]}/" if len(parts := file.name.split("/", 1)) > 1 else "./"
                      for file in files if file.is_new)
    return Finding(FindingKind.MANY, folders.most_common(1)[0][0], count=count)


def _installed(name: str, environments: Iterable[str]) -> str:
    """Return the outermost folder of installed files that a file lies in, with a final slash; '' for none."""
    parts = name.split("/")
    for depth, part in enumerate(parts[:-1], 1):
        if part in _FOLDERS or "/".join([*parts[:depth], ""]) in environments:
            return "/".join([*parts[:depth], ""])
    return ""


def _kind(file: ChangedFile, limits: GuardConfig) -> FindingKind | None:
    last = file.name.rpartition("/")[2]
    if file.is_new:
        if _DUMP.fullmatch(last):
            return FindingKind.DUMP
        if _is_secret(last, file.head):
            return FindingKind.SECRET
        if matches(file.name, limits.refuse):
            return FindingKind.NAME
    return FindingKind.SIZE if limits.max_file is not None and file.size > limits.max_file else None


def _is_secret(last: str, head: bytes) -> bool:
    is_named = any(fnmatchcase(last, pattern) for pattern in _SECRETS)
    is_variables = bool(_ENV_FILE.fullmatch(last)) and not _ENV_EXAMPLE.fullmatch(last)
    return is_named or is_variables or bool(_PRIVATE_KEY.search(head))


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a path matches a pattern: with a slash the whole path or a folder above, else any part of it."""
    parts = name.split("/")
    above = ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
    return any(fnmatchcase(candidate, pattern.strip("/"))
               for pattern in patterns for candidate in (above if "/" in pattern.strip("/") else parts))


def count_conflicts(content: bytes) -> int:
    """Return how many conflicts, from `<<<<<<<` to `>>>>>>>`, a file holds as git writes them; 0 for a binary file."""
    if b"<<<<<<< " not in content or b"\0" in content[:HEAD_BYTES]:
        return 0
    count, step = 0, 0
    for line in content.splitlines():
        if line.startswith(b"<<<<<<< "):
            step = 1
        elif step == 1 and line == b"=======":
            step = 2
        elif step == 2 and line.startswith(b">>>>>>> "):
            count, step = count + 1, 0
    return count
