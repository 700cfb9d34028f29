"""Output of `pipeline validate`, `show` and `status`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from garrison.cli.pipeline import pipeline
from garrison.errors import NotFound
from garrison.pipeline.graph import DialectError
from garrison.pipeline.parser import parse
from garrison.records.journal import Writer
from garrison.records.run import RunFiles
from garrison.session.session import shipped_graph

EXAMPLE = Path(__file__).parents[2] / "pipelines" / "two_tasks.dot"
LINE = "digraph p { start [shape=circle]; a [shape=box]; x [shape=doublecircle]; start -> a -> x }\n"


def call(*args: object) -> Result:
    return CliRunner().invoke(pipeline, [str(arg) for arg in args])


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    path = tmp_path / "broken.dot"
    path.write_text("digraph g {\n start -> t -> exit\n t [shape=parallelogram]\n t -> u\n}", encoding="utf-8")
    return path


def test_the_shipped_example_is_valid_and_shown() -> None:
    result = call("validate", EXAMPLE)
    assert result.exit_code == 0
    assert "0 errors" in result.stdout
    assert "would accept it" in result.stdout
    unnamed = json.loads(call("validate", EXAMPLE, "--json", "--strict").stdout)
    assert {(each["rule"], each["severity"]) for each in unnamed} <= {("agent_unnamed", "warning")}
    lines = call("show", EXAMPLE).stdout.splitlines()
    assert lines[0] == "node\thandler\tafter\tlabel"
    assert "join_both\ttool\twrite_greeting, write_farewell\tJoin both" in lines
    shown = json.loads(call("show", EXAMPLE, "--json").stdout)
    assert shown["id"] == "two_tasks"
    assert shown["refused"] is None
    assert [node["handler"] for node in shown["nodes"]] == ["start", "codergen", "codergen", "tool", "exit"]
    assert len(shown["edges"]) == 5


def test_findings_have_positions_and_set_the_exit_code(broken: Path) -> None:
    result = call("validate", broken)
    assert result.exit_code == 1
    assert "2:11\terror\ttool_command_required\tt is a tool without a command" in result.stdout
    assert "4 nodes, 3 edges, 2 errors, 3 warnings" in result.stdout
    result = call("validate", broken, "--json")
    assert result.exit_code == 1
    first = json.loads(result.stdout)[0]
    assert (first["rule"], first["severity"]) == ("tool_command_required", "error")
    assert (first["node"], first["line"]) == ("t", 2)
    assert set(first) == {"rule", "severity", "message", "node", "edge", "line", "column", "fix"}


def test_a_syntax_error_has_its_position(tmp_path: Path) -> None:
    result = validate(tmp_path / "bad.dot", "digraph g {\n a -- b\n}")
    assert isinstance(result.exception, DialectError)
    assert str(result.exception).startswith(f"{tmp_path}/bad.dot:2:4: ")
    result = call("validate", tmp_path / "bad.dot", "--json")
    assert result.exit_code == 1
    assert [(one["rule"], one["line"], one["column"]) for one in json.loads(result.stdout)] == [("parse", 2, 4)]
    assert isinstance(call("validate", tmp_path / "absent.dot", "--json").exception, NotFound)


def validate(path: Path, text: str, *options: str) -> Result:
    path.write_text(text, encoding="utf-8")
    return call("validate", path, *options, "--home", path.parent)


def test_what_launch_refuses_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "warn.dot"
    result = validate(path, "digraph { start; a [type=magic]; exit; start -> a -> exit }")
    assert result.exit_code == 1
    assert "warning\ttype_known" in result.stdout
    assert "1:18\terror\taccepted_by_launch\tnode a has the unknown type 'magic'" in result.stdout
    assert result.stdout.endswith("1 error, 1 warning\ngarrison launch would refuse it\n")
    [refused, known] = json.loads(call("validate", path, "--json").stdout)
    assert (refused["rule"], refused["severity"], refused["line"]) == ("accepted_by_launch", "error", 1)
    assert (known["rule"], known["severity"]) == ("type_known", "warning")
    for graph, why in (("start; a [label=A]; b [label=B]; exit; start -> {a b} -> exit", "set flow=dag"),
                       ("start; Integration [label=A]; exit; start -> Integration -> exit", "the run's own branch"),
                       ("land=pr start; tested [label=A]; exit; start -> tested -> exit", "the run's own branch"),
                       ("start; a [type=subgraph graph_ref=no.dot]; exit; start -> a -> exit", "cannot be read")):
        result = validate(path, f"digraph {{ {graph} }}")
        assert result.exit_code == 1
        assert why in result.stdout


def test_agents_are_checked_as_by_launch(tmp_path: Path) -> None:
    path = tmp_path / "agents.dot"
    graph = "digraph { start; a [label=A agent=%s]; exit; start -> a -> exit }"
    (tmp_path / "config.toml").write_text('[agents.gone]\nargv = ["no-such-program"]\n'
                                          '[agents.shell]\nargv = ["sh"]\n[agents.file]\nargv = ["/no/such/file"]\n')
    assert "no agent 'nobody'" in validate(path, graph % "nobody").stdout
    missing = "agent gone runs no-such-program, which is not on the PATH; install it, or correct [agents.gone]"
    assert missing in validate(path, graph % "gone").stdout
    assert "agent file runs /no/such/file, which is not a program" in validate(path, graph % "file").stdout
    assert validate(path, graph % "shell").exit_code == 0
    plain = "digraph { start; a [label=A]; exit; start -> a -> exit }"
    result = validate(path, plain)
    assert result.exit_code == 0
    assert "a has no agent= and no command=; launch it with --agent NAME" in result.stdout
    assert result.stdout.endswith("would accept it with --agent NAME\n")
    refused = validate(path, plain, "--agent", "command")
    assert refused.exit_code == 1
    assert "node a has no command=" in refused.stdout


def test_pipeline_run_checks_its_agents(tmp_path: Path) -> None:
    path = tmp_path / "p.dot"
    path.write_text("digraph { start; a [label=A agent=gone]; exit; start -> a -> exit }")
    (tmp_path / "config.toml").write_text('[agents.gone]\nargv = ["no-such-program"]\n')
    refused = call("run", path, "--home", tmp_path)
    assert "agent gone runs no-such-program, which is not on the PATH" in str(refused.exception)
    (tmp_path / "config.toml").write_text('[agents.gone]\nargs = ["no-such-program"]\n')
    refused = call("run", path, "--home", tmp_path)
    assert "config.toml:2: [agents.gone] args is not a setting; did you mean argv?" in str(refused.exception)
    assert call("run", path, "--home", tmp_path, "--simulate").exit_code == 0


def test_warnings_are_errors_only_with_strict(tmp_path: Path) -> None:
    graph = "digraph { start; a [label=A milestone=7]; exit; start -> a -> exit }"
    assert "warning\tattribute_unknown" in (loose := validate(tmp_path / "w.dot", graph)).stdout
    assert loose.exit_code == 0
    assert "error\tattribute_unknown" in (strict := validate(tmp_path / "w.dot", graph, "--strict")).stdout
    assert strict.exit_code == 1
    assert validate(tmp_path / "w.dot", graph.replace("milestone", "x_milestone"), "--strict").exit_code == 0


def test_a_graph_is_validated_for_its_use(tmp_path: Path) -> None:
    for use, code in (("launch", 1), ("run", 1), ("session", 0)):
        result = validate(tmp_path / "turn.dot", shipped_graph("turn"), "--for", use)
        assert result.exit_code == code, result.stdout
        assert ("would accept it" in result.stdout) == (code == 0)
        assert ("pass --for session" in result.stdout) == (code == 1)
    fork = "digraph { flow=walk start; p [type=tool command=x on_resume=maybe]; exit; start -> p -> exit }"
    assert validate(tmp_path / "p.dot", fork).exit_code == 0
    refused = validate(tmp_path / "p.dot", fork, "--for", "run")
    assert refused.exit_code == 1
    assert "accepted_by_run\tnode p has on_resume='maybe'" in refused.stdout


def test_a_graph_is_read_from_standard_input(broken: Path) -> None:
    result = CliRunner().invoke(pipeline, ["validate", "-"], input=broken.read_bytes())
    assert result.exit_code == 1
    assert result.stdout == call("validate", broken).stdout
    accepted = CliRunner().invoke(pipeline, ["validate", "-"], input=LINE)
    assert accepted.exit_code == 0
    assert "would accept it" in accepted.stdout
    unreadable = CliRunner().invoke(pipeline, ["validate", "-"], input="graph {")
    assert str(unreadable.exception).startswith("<stdin>:1:1: ")
    assert json.loads(CliRunner().invoke(pipeline, ["parse", "-", "--json"], input=LINE).stdout)["id"] == "p"
    assert "3 nodes" in CliRunner().invoke(pipeline, ["show", "-"], input=LINE).stdout


def test_a_terminal_gets_a_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    with pytest.raises(SystemExit) as caught:
        pipeline.main(["show", str(EXAMPLE)])
    assert caught.value.code == 0
    assert "─" in capsys.readouterr().out


def test_status_shows_each_node_and_leaves_the_file_unchanged(tmp_path: Path) -> None:
    files = RunFiles(tmp_path, "r1")
    files.root.mkdir(parents=True)
    files.graph.write_text(LINE)
    writer = Writer(files.journal, "guardian-p@r1#1")
    for kind, data in (("node", {"node": "a", "status": "pending", "attempt": 1}),
                       ("node", {"node": "a", "status": "active", "attempt": 2, "reason": "red"})):
        writer.append(kind, data, "2026-01-31T12:00:00.000000Z")
    writer.close()
    plain = call("status", "r1", "--home", tmp_path)
    assert plain.stdout.split("\n")[1].split() == ["a", "waiting", "2", "red"]
    told = json.loads(call("status", "r1", "--home", tmp_path, "--json").stdout)
    assert (told["a"]["status"], told["a"]["attempt"]) == ("waiting", 2)
    drawn = parse(call("status", "r1", "--home", tmp_path, "--dot").stdout)
    assert (drawn.nodes["a"].attrs["status"], drawn.nodes["a"].attrs["attempt"]) == ("active", "2")
    assert files.graph.read_text() == LINE
    missing = call("status", "r2", "--home", tmp_path)
    assert isinstance(missing.exception, NotFound)
