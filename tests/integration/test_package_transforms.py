"""An installed package that changes graphs: all doors read the same, changed one, and the pipelines within it."""

from __future__ import annotations

import json

GRAPH = "digraph crew { start [shape=Mdiamond]; exit [shape=Msquare]; "


def test_all_commands_read_the_output_of_an_installed_transform(place):
    """A package that gives every codergen node a command; without it, launch refuses the graph."""
    package = place.root / "site"
    info = package / "shouting-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shouting\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[garrison.transforms]\nshout = shouting:shout\n")
    (package / "shouting.py").write_text(
        "from dataclasses import replace\n\ndef shout(graph):\n"
        "    nodes = {name: replace(node, attrs={**node.attrs, 'command': 'echo loud'}) if node.handler == 'codergen'\n"
        "             else node for name, node in graph.nodes.items()}\n    return replace(graph, nodes=nodes)\n")
    (place.root / "crew.dot").write_text(GRAPH + "a; more [type=subgraph, graph_ref=\"inner.dot\"]; "
                                         "start -> a -> more -> exit }")
    (place.root / "inner.dot").write_text(GRAPH + "b; start -> b -> exit }")
    words = ("launch", "crew.dot", "--target-dir", place.repo, "--no-gate", "--run", "r1")
    assert "node a has no command=" in place.command(*words, "--dry-run").stderr
    env = {"PYTHONPATH": str(package)}
    shown = json.loads(place.command("pipeline", "show", "crew.dot", "--json", **env).stdout)
    assert {node["id"]: node["attrs"].get("command") for node in shown["nodes"]}["a"] == "echo loud"
    dry = place.command(*words, "--dry-run", "--json", **env)
    assert set(json.loads(dry.stdout)["tasks"]) == {"a", "more__b"}, dry.stderr
