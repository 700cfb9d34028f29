"""103 foreign graphs: all parse; lint, launch and a simulated run report something sensible for each."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from garrison.errors import GarrisonError, Refused
from garrison.pipeline import AutoApprove, Outcome, run
from garrison.pipeline.dot_writer import to_dot, to_drawing
from garrison.pipeline.flow.program import compile_graph
from garrison.pipeline.handlers.registry import BUILT_IN
from garrison.pipeline.lint import errors, lint
from garrison.pipeline.parser import parse, parse_file
from garrison.pipeline.plan import plan_run
from garrison.pipeline.transforms import PROPERTIES, prepare
from support import DEADLINE

CORPUS = Path(__file__).parents[2] / ".." / "shared" / "corpus"
MANIFEST = CORPUS / "MANIFEST.json"
ENTRIES = json.loads(MANIFEST.read_text(encoding="utf-8")) if MANIFEST.is_file() else []

pytestmark = pytest.mark.skipif(not ENTRIES, reason="the corpus of foreign graphs (../shared/corpus) is not here")


def test_every_foreign_graph_is_read_and_judged_alike() -> None:
    """What lint lets pass can be prepared, compiled and drawn; preparing adds only what the stylesheet sets.

    Some of the refused ones need a manager or a session, some are broken, none is refused by mistake.
    """
    assert {entry["file"] for entry in ENTRIES} == {str(path.relative_to(CORPUS)) for path in CORPUS.glob("*/*.dot")}
    assert len(ENTRIES) == 103
    found: Counter[str] = Counter()
    taken = 0
    for entry in ENTRIES:
        graph = parse_file(CORPUS / entry["file"])
        assert (len(graph.nodes), len(graph.edges)) == (entry["nodes"], entry["edges"]), graph.source
        assert parse(to_dot(graph)) == graph, graph.source
        findings = lint(graph)
        found.update(one.rule for one in findings)
        for finding in findings:
            assert finding.message and "\n" not in str(finding), graph.source
            assert finding.node is None or finding.node in graph.nodes, graph.source
        try:
            plan = plan_run(graph)
        except Refused as error:
            assert "\n" not in str(error)
            assert str(error).startswith(graph.source)
        else:
            assert set(plan.tasks) < set(graph.nodes), graph.source
            taken += 1
        ready = prepare(graph)
        for name, node in graph.nodes.items():
            added = ready.nodes[name].attrs.keys() - node.attrs.keys()
            assert added <= set(PROPERTIES), graph.source
            assert {key: value for key, value in ready.nodes[name].attrs.items() if key in node.attrs
                    and key != "prompt"} == {key: value for key, value in node.attrs.items() if key != "prompt"}
        drawn = parse(to_drawing(graph))
        assert [str(edge) for edge in drawn.edges][:len(graph.edges)] == [*map(str, graph.edges)], graph.source
        if not errors(findings):
            assert set(compile_graph(ready).units) == set(graph.nodes), graph.source
    assert (found, taken) == (FINDINGS, 85)


FINDINGS = {
    "attribute_unknown": 51, "tool_command_required": 7, "ambiguous_edges": 5, "conditions_not_exhaustive": 27,
    "goal_gate_has_retry": 6, "prompt_on_llm_nodes": 22, "timeout_unit": 19, "type_known": 27,
    "undeclared_node": 2, "single_exit": 2, "single_option": 1,
}
"""What lint says of the corpus, read finding by finding: each names something that garrison would stumble over."""


def plain(attrs: Mapping[str, object]) -> dict[str, object]:
    """Return the attributes whose text needs no escape, without those that Graphviz or a subgraph's label adds."""
    return {key: value for key, value in attrs.items()
            if key not in ("name", "_gvid", "class") and re.fullmatch(r"[\w .:,-]+", str(value))}


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz, the oracle, is not installed")
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["file"])
def test_graphviz_reads_the_same(entry: dict[str, object]) -> None:
    path = CORPUS / str(entry["file"])
    answer = subprocess.run(["dot", "-Tdot_json", str(path)], capture_output=True, text=True, timeout=DEADLINE,
                            check=False)
    if answer.returncode:
        pytest.skip("Graphviz refuses this text")
    theirs = json.loads(answer.stdout)
    objects = theirs.get("objects", [])
    names = {item["_gvid"]: item["name"] for item in objects}
    ours = parse_file(path)
    nodes = {item["name"]: item for item in objects if "nodes" not in item and "subgraphs" not in item}
    assert set(ours.nodes) == set(nodes)
    for name, node in ours.nodes.items():
        assert plain(node.attrs) == plain(nodes[name]), name
    assert sorted((edge.source, edge.target) for edge in ours.edges) == sorted(
        (names[edge["tail"]], names[edge["head"]]) for edge in theirs.get("edges", []))


def test_every_foreign_graph_runs_or_is_refused_with_a_reason() -> None:
    """Every node succeeds. Those that do not end have edges for other outcomes, loop, or are unsound."""
    handlers = {name: lambda _call: Outcome("success") for name in ("*", *BUILT_IN) if name != "wait.human"}
    ends: Counter[str] = Counter()
    for path in sorted(CORPUS.glob("*/*.dot")):
        try:
            result = run(path, handlers=handlers, answerer=AutoApprove())
        except GarrisonError as error:
            assert str(error).startswith(f"{path}:")
            assert "\n" not in str(error)
            ends["refused"] += 1
            continue
        ends[result.reason or result.status] += 1
        assert result.status == "success" or (result.detail and result.resumable), path
    assert ends == {"success": 88, "no_matching_edge": 11, "max_steps_exceeded": 1, "refused": 3}
