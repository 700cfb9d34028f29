"""The status that a graph brings along: read once, as the state a run begins with. Pure.

The rule of this room: the graph's `status` attributes say where its nodes stand before garrison touches them; garrison
never writes them back. Words are folded, and a word that nobody knows is an error, never "pending".
"""

from __future__ import annotations

from collections.abc import Mapping

from garrison.pipeline.graph import Graph, TypeConflict, text

PENDING, ACTIVE, IMPL_COMPLETE, VALIDATED, FAILED = "pending", "active", "impl_complete", "validated", "failed"
SKIPPED = "skipped"

WORDS: Mapping[str, str] = {
    "pending": PENDING,
    "active": ACTIVE,
    "impl_complete": IMPL_COMPLETE,
    "validated": VALIDATED,
    "accepted": VALIDATED,
    "failed": FAILED,
}
"""What may stand in a graph, and the node status it means."""


def fold(word: str) -> str | None:
    """The node status that `word` means; None for a word nobody knows."""
    return WORDS.get(word.strip().lower().replace("-", "_").replace(" ", "_"))


def imported(graph: Graph) -> dict[str, str]:
    """The status of each node that has one in the graph; TypeConflict for an unknown word."""
    found = {}
    for node in graph.nodes.values():
        word = text(node.attrs, "status")
        if word is None:
            continue
        status = fold(word)
        if status is None:
            raise TypeConflict("status", node.attrs["status"], "a node status; write " + ", ".join(WORDS))
        found[node.id] = status
    return found
