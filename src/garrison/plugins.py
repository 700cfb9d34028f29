"""Plug-ins: what installed packages offer as entry points, by group and name.

Names are read without importing anything, so a broken plug-in is noticed only by who uses it, in one line. The first
package by name wins where two offer the same name; garrison's own names always come first.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any

from garrison.errors import UsageError
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from importlib.metadata import EntryPoint


class Group(StrEnum):
    """Group of entry points."""

    AGENTS = "garrison.agents"
    """Kinds of agents: `kind =` of a profile."""
    HANDLERS = "garrison.handlers"
    """Types of nodes."""
    TERMINALS = "garrison.terminals"
    """Values of `--terminal`."""
    STRATEGIES = "garrison.merge_strategies"
    """Ways in which the merge queue makes a commit of a branch."""
    TRANSFORMS = "garrison.transforms"
    """Changes of every graph that is read."""
    LINT_RULES = "garrison.lint_rules"
    """Rules that graphs are checked by."""


WORDS = {Group.AGENTS: "kind of agent", Group.HANDLERS: "handler", Group.TERMINALS: "terminal",
         Group.STRATEGIES: "merge strategy", Group.TRANSFORMS: "transform",
         Group.LINT_RULES: "lint rule"}


class PluginInfo(Value):
    """One thing that a package offers."""

    group: Group
    name: str
    value: str
    """Module and object."""
    package: str
    problem: str = ""
    """Why it cannot be used; '' if it can be loaded."""


@cache
def offered(group: Group) -> Mapping[str, EntryPoint]:
    """Return what installed packages offer in a group, by name; nothing is imported."""
    from importlib.metadata import entry_points  # 15 ms, which few processes need

    by_name: dict[str, EntryPoint] = {}
    for point in sorted(entry_points(group=group), key=lambda point: (point.name, _package(point))):
        by_name.setdefault(point.name, point)
    return by_name


@cache
def load(group: Group, name: str) -> Any:
    """Import what a package offers under a name; UsageError in one line if that fails."""
    point = offered(group)[name]
    try:
        return point.load()
    except (Exception, SystemExit) as error:  # whatever its module does
        problem = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise UsageError(f"the {WORDS[group]} {name} ({point.value}) of the package {_package(point)} cannot be "
                         f"loaded: {problem}; repair or uninstall the package") from error


def list_plugins() -> Iterator[PluginInfo]:
    """Yield all that installed packages offer, with what is wrong with it; each is imported."""
    for group in Group:
        for name, point in offered(group).items():
            problem = ""
            try:
                if not callable(load(group, name)):
                    problem = f"{point.value} cannot be called"
            except UsageError as error:
                problem = str(error)
            yield PluginInfo(group, name, point.value, _package(point), problem)


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "unknown"
