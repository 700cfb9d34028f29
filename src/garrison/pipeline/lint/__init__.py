"""Lint: find problems in a graph that parses. One small function per rule, and the table of all rules. Pure.

A rule reads a `View` of the graph and yields findings; it never raises, changes or starts anything. An `error` prevents
a launch, a `warning` does not. To add a rule, write a function in one of the modules here and list it in `RULES`.
"""

from __future__ import annotations

from collections.abc import Collection
from types import MappingProxyType

from garrison import plugins
from garrison.errors import UsageError
from garrison.pipeline.graph import Graph
from garrison.pipeline.lint import attributes, context_keys, edges, known_attributes, structure
from garrison.pipeline.lint.findings import ERROR, WARNING, LintFinding, Problem, Rule, Rules, View, command_of, flow_of

__all__ = ["ERROR", "RULES", "WARNING", "LintFinding", "Problem", "View", "command_of", "errors", "flow_of",
           "installed_rules", "lint"]

RULES: Rules = {
    "start_node": (ERROR, structure.start_node),
    "terminal_node": (ERROR, structure.terminal_node),
    "single_exit": (WARNING, structure.single_exit),
    "start_no_incoming": (ERROR, structure.start_no_incoming),
    "exit_no_outgoing": (ERROR, structure.exit_no_outgoing),
    "node_id": (ERROR, structure.node_id),
    "shape_misspelt": (ERROR, attributes.shape_misspelt),
    "edge_target_exists": (ERROR, structure.edge_target_exists),
    "undeclared_node": (WARNING, structure.undeclared_node),
    "reachability": (ERROR, structure.reachability),
    "retry_target_exists": (ERROR, structure.retry_target_exists),
    "dag_cycle": (ERROR, structure.dag_cycle),
    "parallel_without_join": (ERROR, structure.parallel_without_join),
    "branch_misses_join": (ERROR, structure.branch_misses_join),
    "goal_gate_has_retry": (WARNING, structure.goal_gate_has_retry),
    "dead_end": (WARNING, structure.dead_end),
    "loop_without_exit": (WARNING, structure.loop_without_exit),
    "attribute_misspelt": (ERROR, known_attributes.attribute_misspelt),
    "attribute_misplaced": (ERROR, known_attributes.attribute_misplaced),
    "attribute_unknown": (WARNING, known_attributes.attribute_unknown),
    "type_conflict": (ERROR, attributes.type_conflict),
    "status_known": (ERROR, attributes.status_known),
    "tool_command_required": (ERROR, attributes.tool_command_required),
    "child_pipeline_required": (ERROR, attributes.child_pipeline_required),
    "candidates": (ERROR, attributes.candidates),
    "out_of_range": (ERROR, attributes.out_of_range),
    "stylesheet_syntax": (ERROR, attributes.stylesheet_syntax),
    "type_known": (WARNING, attributes.type_known),
    "fidelity_valid": (WARNING, attributes.fidelity_valid),
    "prompt_on_llm_nodes": (WARNING, attributes.prompt_on_llm_nodes),
    "variable_misspelt": (ERROR, attributes.variable_misspelt),
    "timeout_unit": (WARNING, attributes.timeout_unit),
    "single_option": (WARNING, edges.single_option),
    "condition_syntax": (ERROR, edges.condition_syntax),
    "condition_never_true": (ERROR, edges.condition_never_true),
    "outcome_misspelt": (ERROR, edges.outcome_misspelt),
    "edge_never_followed": (WARNING, edges.edge_never_followed),
    "ambiguous_edges": (WARNING, edges.ambiguous_edges),
    "conditions_not_exhaustive": (WARNING, edges.conditions_not_exhaustive),
    "duplicate_edge": (WARNING, edges.duplicate_edge),
    "context_key_unknown": (WARNING, context_keys.context_key_unknown),
}
"""Every rule: its name, its severity, and its function."""


BEFORE_A_RUN = frozenset({"attribute_misspelt", "attribute_misplaced", "attribute_unknown", "edge_target_exists",
                          "out_of_range", "condition_never_true", "shape_misspelt", "outcome_misspelt",
                          "variable_misspelt", "branch_misses_join"})
"""Rules that only a new run must meet. A run that started under an earlier version without them continues."""


def lint(graph: Graph, handlers: Collection[str] = (), *, has_begun: bool = False,
         rules: Collection[str] | None = None, own: Rules = MappingProxyType({})) -> list[LintFinding]:
    """Return all findings, errors before warnings, each group in the order of the text.

    `handlers`: the node types of this installation in addition to the dialect's. With `has_begun` the graph belongs to
    a started run, and the rules in BEFORE_A_RUN do not apply. `rules`: names of the rules to apply
    (default: all), `own`: the rules of installed packages (`installed_rules`).
    """
    view = View(graph, frozenset(handlers))
    findings = [problem.finding(name, severity) for name, (severity, rule) in RULES.items()
                if not (has_begun and name in BEFORE_A_RUN) and (rules is None or name in rules)
                for problem in rule(view)]
    findings += [problem.finding(name, severity) for name, (severity, rule) in own.items()
                 for problem in _guarded(name, rule, view)]
    return sorted(findings, key=lambda finding: (finding.severity != ERROR, finding.line, finding.column))


def installed_rules() -> Rules:
    """Return the rules of installed packages (entry points `garrison.lint_rules`); UsageError for a broken one.

    An entry point is a function from a `View` to `Problem`s; with the attribute `severity="error"` they are errors.
    """
    loaded = {name: plugins.load(plugins.PluginGroup.LINT_RULES,
                                 name) for name in plugins.offered(plugins.PluginGroup.LINT_RULES)
              if name not in RULES}
    return {name: (ERROR if getattr(rule, "severity", WARNING) == ERROR else WARNING, rule)
            for name, rule in loaded.items()}


def _guarded(name: str, rule: Rule, view: View) -> list[Problem]:
    """Return the problems from a package's rule; UsageError in one line if it fails."""
    try:
        return [problem for problem in rule(view) if isinstance(problem, Problem)]
    except Exception as error:  # a package's code may raise anything
        raise UsageError(f"the lint rule {name} failed: {' '.join(f'{type(error).__name__}: {error}'.split())[:200]}; "
                         "repair or uninstall its package") from error


def errors(findings: list[LintFinding]) -> list[LintFinding]:
    return [finding for finding in findings if finding.severity == ERROR]
