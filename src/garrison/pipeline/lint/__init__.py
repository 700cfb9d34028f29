"""What is wrong with a graph that reads well: one small function a rule, and a table of them. Pure.

The rule of this room: a rule looks at a `View` of the graph alone and yields what it found; it never raises, changes or
starts anything. An `error` keeps a run from being launched, a `warning` does not. A new rule is a function in one of
the files here and a line in that file's `RULES`.
"""

from __future__ import annotations

from collections.abc import Collection

from garrison.pipeline.graph import Graph
from garrison.pipeline.lint import ends, keys, kinds, paths, routes
from garrison.pipeline.lint.finding import ERROR, WARNING, Finding, Rules, View, command_of, flow_of
from garrison.pipeline.lint.paths import find_cycle

__all__ = ["ERROR", "RULES", "WARNING", "Finding", "command_of", "errors", "find_cycle", "flow_of", "lint"]

RULES: Rules = {**ends.RULES, **paths.RULES, **kinds.RULES, **routes.RULES, **keys.RULES}
"""Every rule: its name, how much it weighs, and the function that looks."""


def lint(graph: Graph, handlers: Collection[str] = ()) -> list[Finding]:
    """All findings, errors before warnings, each kind in the order of the text.

    `handlers` are the types that this installation runs beyond those of the dialect.
    """
    view = View(graph, frozenset(handlers))
    findings = [found.finding(name, severity) for name, (severity, rule) in RULES.items() for found in rule(view)]
    return sorted(findings, key=lambda finding: (finding.severity != ERROR, finding.line, finding.column))


def errors(findings: list[Finding]) -> list[Finding]:
    """Those findings that keep a run from being launched."""
    return [finding for finding in findings if finding.severity == ERROR]
