"""Names: which ones are allowed, and the files, branches, sessions and process markers derived from them. Pure.

Names become file, branch and tmux names, so everything outside the patterns here is refused at the entry points.
"""

from __future__ import annotations

import re
from functools import lru_cache

from garrison.errors import UsageError
from garrison.values import Value

ROLES = ("launch", "guardian", "runner", "orchestrator", "processor")
"""Processes with a record: the supervision chain from the top down, and the merge processor."""

INTEGRATION = "integration"
"""Node name of a run's own branch and of its landing; no node of such a run may have it."""
TESTED = "tested"
"""Node name of the branch on which a pull request is tested; no node of a run with one may have it."""

_RUN = re.compile(r"[a-z0-9][a-z0-9-]{0,31}\Z")
_NODE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,47}\Z")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}\Z")
_FULL = re.compile(r"(?P<role>launch|guardian|runner|orchestrator|processor)(-(?P<name>[A-Za-z_][A-Za-z0-9_.-]{0,63}))?"
                   r"(@(?P<run>[a-z0-9][a-z0-9-]{0,31}))?\Z")


def quote(text: str) -> str:
    """Return `text` for an error message: in quotes, on one line, at most 60 characters."""
    return repr(text) if len(text) <= 60 else f"{text[:60]!r}…"


def check_run(run: str) -> str:
    """Return `run` if it is a run id, else raise UsageError."""
    if not _RUN.match(run):
        raise UsageError(f"not a run id: {quote(run)}; use 1 to 32 of a-z 0-9 - starting with a letter or digit")
    return run


def check_node(node: str) -> str:
    """Return `node` if it is the name of a node, else raise UsageError."""
    if not _NODE.match(node):
        raise UsageError(f"not a node name: {quote(node)}; use 1 to 48 of A-Z a-z 0-9 _ - starting with a letter or _")
    return node


def check_role(role: str) -> str:
    """Return `role` if it is a role of a process, else raise UsageError."""
    if role not in ROLES:
        raise UsageError(f"not a role: {quote(role)}; roles are {', '.join(ROLES)}")
    return role


def check_name(name: str) -> str:
    """Return `name` if a record may have it, else raise UsageError."""
    if not _NAME.match(name) or ".." in name:
        raise UsageError(f"not a name: {quote(name)}; use 1 to 64 of A-Z a-z 0-9 _ . - starting with a letter or _, "
                         "no '..'")
    return name


def to_name(text: str) -> str:
    """Return a name made of any text: other characters become `_` (for pipeline ids made of file names)."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", text)[:48] or "_"
    return name if re.match(r"[A-Za-z_]", name) else "_" + name[:47]


def to_run_stem(text: str) -> str:
    """Return the stem of a run id made of any text: lower case, other characters become `-`, at most 20 characters."""
    stem = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:20].strip("-")
    return stem or "run"


class Key(Value, frozen=True, order=True):
    """Owner of a record: (role, name, run); `run` is empty for records made by hand without one."""

    role: str
    name: str
    run: str = ""

    def __post_init__(self) -> None:
        check_role(self.role)
        check_name(self.name)
        if self.run:
            check_run(self.run)

    @property
    def full(self) -> str:
        """Return `role-name@run`, as in file names, tmux and messages; the launcher's is `launch@run`."""
        stem = self.role if self.name == self.role == "launch" else f"{self.role}-{self.name}"
        return f"{stem}@{self.run}" if self.run else stem

    @classmethod
    def parse(cls, full: str) -> Key:
        """Parse a full name; UsageError for anything else."""
        match = _FULL.match(full)
        if not match:
            raise UsageError(f"not a full name: {quote(full)}; the form is role-name@run")
        key = cls(match["role"], match["name"] or match["role"], match["run"] or "")
        if key.full != full:  # `guardian@r`, or `launch-launch@r`: two spellings of one name would be two files
            raise UsageError(f"not a full name: {quote(full)}; use {key.full}")
        return key

    def __str__(self) -> str:
        return self.full


@lru_cache(maxsize=4096)
def key_of(role: str, name: str, run: str) -> Key:
    """Return the key with these parts, of which most are asked for again and again: checking one costs more."""
    return Key(role, name, run)


def launcher_key(run: str) -> Key:
    return key_of("launch", "launch", run)


def branch_name(run: str, node: str) -> str:
    """Return the branch on which a node's work is committed."""
    return f"garrison/{run}/{node}"


def integration_branch(run: str) -> str:
    """Return the branch that collects the work of all nodes of a run, if it lands once, at the end."""
    return branch_name(run, INTEGRATION)


def tested_branch(run: str) -> str:
    """Return the branch on which the run's own gate tests its pull request merged into the base."""
    return branch_name(run, TESTED)


def is_run_branch(branch: str) -> bool:
    """Return whether a branch belongs to a run (`integration_branch`)."""
    return branch.startswith("garrison/") and branch.endswith(f"/{INTEGRATION}")


def format_marker(home: str, key: Key, incarnation: int) -> str:
    """Return the marker of an incarnation's processes (GARRISON_LIFE): `<home>:<run>:<role>-<name>#<incarnation>`."""
    stem = key.full.partition("@")[0]
    return f"{home}:{key.run}:{stem}#{incarnation}"


def parse_marker(text: str) -> tuple[str, str, str, int] | None:
    """Return (home, run, role-name, incarnation) of a marker; None if it is malformed. The run may be empty."""
    # From the right: the home is a path, which may contain both separators.
    rest, _, number = text.rpartition("#")
    rest, _, stem = rest.rpartition(":")
    home, _, run = rest.rpartition(":")
    if not (home and stem and number.isascii() and number.isdigit()):
        return None
    return home, run, stem, int(number)
