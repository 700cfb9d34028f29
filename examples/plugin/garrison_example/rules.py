"""A rule that graphs are checked by: each task says how it is accepted."""

from __future__ import annotations

from collections.abc import Iterator

from garrison.pipeline.lint import Problem, View


def tasks_are_accepted(view: View) -> Iterator[Problem]:
    """Report an agent's node without a command that accepts its work."""
    for node in view.graph.nodes_of("codergen"):
        if "agent" in node.attrs and not node.attrs.get("acceptance"):
            yield Problem(f"{node.id} does not say how its work is accepted", "give it acceptance=COMMAND", node)
