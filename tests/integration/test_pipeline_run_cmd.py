"""`garrison pipeline run`, `resume`, `fork`, `answer`, `signal`, `handlers`, `parse`, `status` as a user runs them."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner, Result

from garrison.cli.commands import run_command
from garrison.cli.main import garrison
from garrison.directories import find_home
from garrison.errors import NotFound, Refused, UsageError
from garrison.pipeline import Console, run
from garrison.pipeline.parser import parse_file
from garrison.pipeline.store import RunDirectory
from garrison.records.life_lock import LifeLock
from garrison.sandbox.probe import machine
from support import PROGRAM, UserWorld, git, is_gone, wait_for

ENDS = "start [shape=Mdiamond]; x [shape=Msquare];"
LOOP = f"""digraph Loop {{ goal="Make it work"; {ENDS}
    make [prompt="do $goal"]; test [prompt=test]; ok [shape=diamond]
    start -> make -> test -> ok; ok -> x [condition="outcome=success"]; ok -> make [condition="outcome=fail"] }}"""
GATE = f"""digraph Gate {{ {ENDS} build [shape=parallelogram, tool_command="echo built"]
    gate [shape=hexagon, label="Ship?"]
    fix [shape=parallelogram, tool_command="echo fixed"]
    start -> build -> gate; gate -> x [label="[A] Approve"]; gate -> fix [label="[F] Fix"]; fix -> gate }}"""

Call = Callable[..., Result]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick_retries: None) -> Iterator[Call]:
    """Yield a function that calls `garrison pipeline …` in a directory with loop.dot and gate.dot."""
    monkeypatch.chdir(tmp_path)
    Path("loop.dot").write_text(LOOP)
    Path("gate.dot").write_text(GATE)

    def invoke(*words: object, fails: type[Exception] | None = None) -> Result:
        result = CliRunner().invoke(garrison, ["pipeline", *map(str, words)])
        if fails is None:
            assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        else:
            assert isinstance(result.exception, fails), result.exception
            assert "\n" not in str(result.exception)
        return result

    with mock.patch.dict(os.environ):  # --sandbox sets a variable
        yield invoke


def only_run() -> str:
    found = [path.name for path in (find_home() / "pipelines").iterdir()]
    assert len(found) == 1
    return found[0]


def test_a_simulation_tries_the_flow(call: Call, tmp_path: Path) -> None:
    def simulated(*words: object) -> tuple[int, dict[str, Any]]:
        result = call("run", *words, "--simulate", "--json")
        return result.exit_code, json.loads(result.stdout)

    code, body = simulated("loop.dot", "--outcome", "test=fail:2")
    assert {"status", "reason", "completed_nodes", "node_outcomes", "steps", "context"} <= body.keys()
    assert body["completed_nodes"] == ["start", *["make", "test", "ok"] * 3, "x"]
    assert (code, body["status"], body["node_outcomes"]["test"], body["context"]["graph.goal"]) == (
        0, "success", "success", "Make it work")
    assert simulated("loop.dot", "--outcome", "make=fail")[0] == 1
    code, body = simulated("loop.dot", "--outcome", "test=fail")
    assert (code, body["reason"]) == (1, "stuck_cycle")
    assert simulated("gate.dot")[1]["completed_nodes"] == ["start", "build", "gate", "x"]
    body = simulated("gate.dot", "--answer", "gate=Fix", "--max-steps", 7)[1]
    assert (body["reason"], body["completed_nodes"][3]) == ("max_steps_exceeded", "fix")

    first = json.loads(call("run", "loop.dot", "--simulate", "--run-dir", "r", "--json").stdout)
    assert first["run_dir"] == str(tmp_path / "r")
    assert json.loads(call("resume", "r", "--json").stdout) == first


def test_values_are_set_as_numbers_strings_and_objects(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "c.dot"
    path.write_text(f'digraph {{ {ENDS} a [prompt=a]; start -> a; a -> x [condition="context.n>2"]; a -> x2; '
                    "x2 [shape=Msquare] }")
    result = call("run", path, "--simulate", "--json", "--set", "context.n=3", "--set", "who=me", "--set",
                  'list=[1, "b"]', "--set", "nan=NaN", "--set", "empty=")
    body = json.loads(result.stdout)
    assert body["completed_nodes"][-1] == "x"
    assert [body["context"][key] for key in ("n", "who", "list", "nan", "empty")] == [3, "me", [1, "b"], "NaN", ""]
    refused = call("run", path, "--simulate", "--set", "context.=1", fails=UsageError)
    assert "names no key" in str(refused.exception)


@pytest.mark.smoke
def test_a_run_waits_with_code_3_and_continues_once_answered(call: Call, tmp_path: Path) -> None:
    waiting = call("run", "gate.dot")
    assert waiting.exit_code == 3
    run = only_run()
    assert "Ship?" in waiting.stdout
    assert f"garrison answer gate LABEL --run {find_home()}/pipelines/{run}" in waiting.stderr
    status = call("status", run)
    assert "gate asks: Ship? ([A] Approve, [F] Fix)" in status.stderr
    assert json.loads(call("status", run, "--json").stdout)["questions"]["gate"]["options"][0]["key"] == "A"
    assert 'gate [shape=hexagon, label="Ship?", status=active, visits=1]' in call("status", run, "--dot").stdout
    call("answer", run, "gate", "perhaps", fails=UsageError)
    call("answer", run, "build", "A", fails=NotFound)
    lock = LifeLock.try_acquire(RunDirectory(find_home() / "pipelines" / run).lock)
    assert lock
    assert "another process is running" in str(call("resume", run, fails=Refused).exception)
    assert call("answer", run, "gate", "a").stderr == "answer recorded\n"
    lock.release()
    assert "to continue the run: garrison resume" in call("answer", run, "gate", "fix").stderr
    assert call("resume", run).exit_code == 3
    call("answer", run, "gate", "a")
    answered = call("status", run)
    assert "gate is answered: a; to continue the run: garrison resume" in answered.stderr
    assert "asks" not in answered.stderr and "waits for a person" not in answered.stderr
    assert ["gate", "answered"] in [line.split()[:2] for line in answered.stdout.splitlines()]
    body = json.loads(call("status", run, "--json").stdout)
    assert (body["questions"], body["answers"]) == ({}, {"gate": "a"})
    done = call("resume", run, "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["completed_nodes"] == ["start", "build", "gate", "fix", "gate", "x"]
    assert call("resume", run).exit_code == 0


def test_an_irreversible_answer_is_confirmed_in_every_way_to_answer(
        call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gate is asked at a terminal again after a no; a program has to say `--yes`; nothing else answers it."""
    assert call("run", "gate.dot", "--auto-approve").exit_code == 0
    Path("gate.dot").write_text(GATE.replace('label="[A] Approve"', 'label="[A] Approve", irreversible=true'))
    assert call("run", "gate.dot", "--simulate").exit_code == 0, "a simulation does nothing that stays"
    assert call("run", "gate.dot", "--auto-approve", "--run-dir", "r").exit_code == 3
    call("answer", "r", "gate", "A", fails=Refused)
    call("answer", "r", "gate", "A", "--yes")
    assert call("resume", "r").exit_code == 0
    monkeypatch.setattr("sys.stdin", io.StringIO("a\nn\nf\na\ny\n"))
    assert run(parse_file("gate.dot"), answerer=Console()).completed_nodes[-4:] == ["gate", "fix", "gate", "x"]


def test_a_larger_step_budget_continues_where_the_smaller_ended(call: Call, tmp_path: Path) -> None:
    stopped = call("run", "loop.dot", "--simulate", "--outcome", "test=fail:2", "--max-steps", 5)
    assert stopped.exit_code == 1
    assert "max_steps_exceeded" in stopped.stdout
    run = only_run()
    assert f"resume {find_home()}/pipelines/{run} --max-steps 10" in stopped.stderr
    body = json.loads(call("resume", run, "--max-steps", 50, "--json").stdout)
    assert body["completed_nodes"] == ["start", *["make", "test", "ok"] * 3, "x"]


def test_a_changed_file_is_refused_unless_an_option_chooses_the_graph(call: Call, tmp_path: Path) -> None:
    call("run", "gate.dot", "--run-dir", tmp_path / "r")
    Path("gate.dot").write_text(GATE.replace("gate -> x [", "gate -> more [").replace(
        "fix -> gate", 'fix -> gate; more -> x; more [shape=parallelogram, tool_command="echo more"]'))
    call("resume", tmp_path / "r", fails=Refused)
    assert call("resume", tmp_path / "r", "--original-graph").exit_code == 3
    body = json.loads(call("resume", tmp_path / "r", "--changed-graph", "--answer", "gate=A", "--json").stdout)
    assert body["completed_nodes"] == ["start", "build", "gate", "more", "x"]


def test_a_fork_starts_at_an_earlier_point(call: Call, tmp_path: Path) -> None:
    call("run", "loop.dot", "--simulate", "--outcome", "test=fail:1", "--run-dir", tmp_path / "r")
    forked = json.loads(call("fork", tmp_path / "r", "--at", "test", "--visit", 1, "--set", "why=curious", "--run-dir",
                             tmp_path / "f", "--json").stdout)
    assert (forked["at"], forked["visit"]) == ("test", 1)
    body = json.loads(call("resume", tmp_path / "f", "--json").stdout)
    assert body["completed_nodes"] == ["start", *["make", "test", "ok"] * 2, "x"]
    assert body["context"]["why"] == "curious"
    assert json.loads((tmp_path / "f/manifest.json").read_text())["forked"] == "r at test, visit 1"
    call("fork", tmp_path / "r", "--at", "test", "--visit", 9, fails=NotFound)
    call("fork", tmp_path / "r", "--at", "nowhere", fails=NotFound)
    call("fork", tmp_path / "r", "--at", "ok", fails=Refused)
    last = json.loads(call("fork", tmp_path / "r", "--at", "make", "--json").stdout)
    assert last["visit"] == 2


def test_a_wrong_call_is_refused_and_leaves_nothing(call: Call) -> None:
    for words, said in (
            (("--outcome", "test=fail"), "--outcome is for --simulate"),
            (("--simulate", "--outcome", "tset=fail"), "'tset', which is not a node"),
            (("--simulate", "--outcome", "ok=fail"), "ok, a conditional node, whose outcome follows from others"),
            (("--simulate", "--outcome", "test=fail:1", "--outcome", "test=retry"), "names test twice"),
            (("--simulate", "--outcome", "test="), "NODE=STATUS[:TIMES]"),
            (("--simulate", "--outcome", "test=fail:0"), "NODE=STATUS[:TIMES]"),
            (("--simulate", "--answer", "nothing"), "is not NODE=LABEL"),
            (("--simulate", "--answer", "gate=A"), "is not a question of the graph"),
            (("--simulate", "--set", "n"), "is not KEY=VALUE"),
            (("--agent", "nobody"), "no agent 'nobody'"),
            ((), "node make has no command=, and its agent is command")):
        assert said in str(call("run", "loop.dot", *words, fails=UsageError).exception)
    assert run_command(garrison, ["pipeline", "run", "loop.dot", "--outcome", "a=fail"]) == 2
    assert run_command(garrison, ["pipeline", "run", "no.dot"]) == 1
    assert not (find_home() / "pipelines").exists()


def test_a_run_that_is_not_there(call: Call, tmp_path: Path) -> None:
    (tmp_path / "left").mkdir()
    (tmp_path / "left/journal.jsonl").touch()
    (tmp_path / "file").touch()
    for words in (("answer", "nowhere", "a", "b"), ("signal", "nowhere", "s"), ("fork", "nowhere", "--at", "a")):
        assert "garrison pipeline run FILE" in str(call(*words, fails=NotFound).exception)
    for words in (("resume", "."), ("status", "."), ("status", "./left"), ("resume", "./left"),
                  ("render", "--run", "./file")):
        assert str(call(*words, fails=NotFound).exception).startswith(f"{words[-1]} contains no pipeline run: ")


def test_the_command_agent_does_codergen_nodes_and_those_of_a_pipeline_within(call: Call, tmp_path: Path) -> None:
    (tmp_path / "w.dot").write_text(f"""digraph {{ {ENDS}
        a [prompt="write it", command="cat $GARRISON_PROMPT_FILE > wrote; echo done"]
        sub [type=subgraph, graph_ref=inner.dot]; house [shape=house, stack.child_dotfile=inner.dot]
        start -> a -> sub -> house -> x }}""")
    (tmp_path / "inner.dot").write_text(f'digraph {{ {ENDS} a [command="echo inner >> within; wc -l < within"]; '
                                        "start -> a -> x }")
    (tmp_path / "tree").mkdir()
    body = json.loads(call("run", "w.dot", "--run-dir", "r", "--workdir", "tree", "--json").stdout)
    assert (body["status"], body["reason"], body["context"]["last_response"]) == ("success", "", "2")
    assert (tmp_path / "tree/wrote").read_text() == "write it\n"
    assert (tmp_path / "r/a/response.md").read_text() == "done"


def test_handlers_and_parse(call: Call) -> None:
    found = {one["type"]: one for one in json.loads(call("handlers", "--json").stdout)}
    assert found["wait.human"]["shapes"] == ["hexagon"]
    assert found["parallel"]["from"] == "engine"
    assert "codergen" in call("handlers").stdout
    assert call("parse", "loop.dot").stdout == "Loop: 5 nodes, 5 edges\n"
    assert json.loads(call("parse", "loop.dot", "--json").stdout)["attrs"]["goal"] == "Make it work"
    assert call("parse", "loop.dot", "--dot").stdout.startswith("digraph Loop {")


def test_from_outside_nothing_but_one_object_is_on_stdout(call: Call, tmp_path: Path) -> None:
    def outside(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*PROGRAM, "pipeline", *words, "--home", str(find_home())], capture_output=True,
                              text=True, check=False, stdin=subprocess.DEVNULL, cwd=tmp_path)

    done = outside("run", "gate.dot", "--json", "--answer", "gate=Approve")
    assert (done.returncode, json.loads(done.stdout)["status"], done.stderr) == (0, "success", "")
    Path("gate.dot").write_text("digraph {")
    broken = outside("run", "gate.dot", "--json")
    assert (broken.returncode, broken.stdout) == (1, "")
    assert broken.stderr.startswith("garrison: gate.dot:1:")
    assert broken.stderr.count("\n") == 1


def test_the_output_of_a_command_agent_routes_and_reaches_the_next_one(call: Call, tmp_path: Path) -> None:
    """Its result file as in a launch: label, status, context; the next one has the context, and what happened."""
    said = json.dumps({"preferred_label": "Go", "status": "partial", "context_updates": {"port": 80}, "notes": "n"})
    (tmp_path / "said.json").write_text(said)
    (tmp_path / "r.dot").write_text(f"""digraph {{ {ENDS} a [command="cp said.json $GARRISON_RESULT_FILE"]
        b [command="cp $GARRISON_CONTEXT_FILE context.json; cp $GARRISON_PROMPT_FILE told.md"]; c [command=false]
        start -> a; a -> b [label=go]; a -> c [label=halt]; b -> x; c -> x }}""")
    body = json.loads(call("run", "r.dot", "--json").stdout)
    assert body["node_outcomes"] == {"start": "success", "a": "partial_success", "b": "success", "x": "success"}
    context = json.loads((tmp_path / "context.json").read_text())
    assert (context["port"], context["preferred_label"], context["last_response"]) == (80, "Go", "n")
    assert "- a: partial_success (n)" in (tmp_path / "told.md").read_text()


PLANTED = ("response.md", "prompt.md", "status.json", "exit", "output.log", "stderr.log", "said.json", "context.json")
HOSTILE = (f"for n in {' '.join(PLANTED)}; do for d in $GARRISON_PIPELINE_DIR/$GARRISON_PIPELINE_NODE "
           "$GARRISON_PIPELINE_DIR/$GARRISON_PIPELINE_NODE/agent; do ln -sfn $PWD/../own/secret $d/$n; done; done; "
           "ln -sfn $PWD/../own/secret $GARRISON_STATUS_FILE; ln -sfn $PWD/../own/secret $GARRISON_RESULT_FILE; "
           "mv $GARRISON_PIPELINE_DIR $GARRISON_PIPELINE_DIR.2; echo evil")


@pytest.mark.parametrize("run_dir", ["run", "work/below/run"])
def test_no_link_that_a_command_leaves_is_written_or_read(run_dir: str, call: Call, tmp_path: Path,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    """It may write one of garrison's folders, which garrison reads without following links."""
    (tmp_path / "work/below").mkdir(parents=True)
    (tmp_path / "own").mkdir()
    secret = tmp_path / "own/secret"
    secret.write_text('{"outcome": "success", "notes": "SECRET"}\n')
    monkeypatch.chdir(tmp_path / "work")
    Path("h.dot").write_text(f"""digraph {{ {ENDS} a [command="{HOSTILE}"]; t [shape=parallelogram,
        tool_command="{HOSTILE}"]; b [shape=parallelogram, tool_command="cat $GARRISON_PIPELINE_DIR/*/*.*; exit 0"]
        start -> a -> t; a -> t [condition="outcome=fail"]; t -> b; t -> b [condition="outcome=fail"]; b -> x }}""")
    call("run", "h.dot", "--run-dir", str(tmp_path / run_dir))
    assert secret.read_text() == '{"outcome": "success", "notes": "SECRET"}\n'
    found = [path for path in (tmp_path / run_dir).rglob("*") if path.is_file() and not path.is_symlink()
             and b"SECRET" in path.read_bytes()]
    assert (tmp_path / run_dir / "b/output.log").read_text().count("evil") and found == []


CHANGES = ("echo more >> a; echo new > b; git add b; git commit -qm b; git config core.pager bad; mkdir -p n/.git; "
           "echo bad > n/.git/config; echo /x > ../repo/.git/commondir; exit $(sh code)")


@pytest.fixture
def checkout(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    repo = tmp_path / "repo"
    repo.mkdir()
    git(repo, "init", "-q", "-b", "main")
    git(repo, "config", "user.name", "N")
    git(repo, "config", "user.email", "n@example.org")
    (repo / "a").write_text("a\n")
    (repo / "code").write_text("echo 0\n")
    (repo / "w.dot").write_text(f"digraph w {{ {ENDS} t [shape=parallelogram, tool_command=\"{CHANGES}\"]; "
                                "start -> t -> x }")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "one")
    monkeypatch.chdir(repo)  # after `call`, which works elsewhere
    return repo


def test_in_a_checkout_a_run_works_in_a_worktree_and_leaves_a_branch(checkout: Path, call: Call) -> None:
    """In place, garrison keeps git directories read-only and reports new ones; the next run says that it moved."""
    in_place = call("run", "w.dot", "--in-place")
    assert (checkout / "a").read_text() == "a\nmore\n"
    assert not (checkout / ".git/commondir").exists() and "bad" not in (checkout / ".git/config").read_text()
    assert f"changed the repository in {checkout / 'n'}: your git follows" in in_place.output
    git(checkout, "reset", "-q", "--hard")
    git(checkout, "clean", "-ffdxq")
    before = git(checkout, "config", "--local", "--list")
    result = call("run", "w.dot")
    _, _, branch = result.output.splitlines()[-1].partition("git merge ")
    assert branch.startswith("garrison/") and branch.endswith("/pipeline")
    assert git(checkout, "show", f"{branch}:a") == "a\nmore" and git(checkout, "show", f"{branch}:b") == "new"
    assert (git(checkout, "config", "--local", "--list"), git(checkout, "status", "--short")) == (before, "")
    assert not (checkout / ".git/commondir").exists() and git(checkout, "worktree", "list").count("\n") == 0
    assert ["works in its own worktree now" in each.output for each in (in_place, result, call("run", "w.dot"))] == [
        False, True, False]


def test_a_run_that_failed_in_its_worktree_is_resumed_on_its_branch_when_asked(checkout: Path, call: Call) -> None:
    (checkout / "code").write_text("echo broken >&2; echo $((2 - $(grep -c more a)))\n")
    git(checkout, "commit", "-qam", "fails once")
    failed = call("run", "w.dot")
    assert (failed.exit_code, call("resume", only_run()).exit_code) == (1, 1)
    assert "broken" in failed.stdout
    assert call("resume", only_run(), "--retry-failed").exit_code == 0
    assert git(checkout, "show", f"garrison/{only_run()}/pipeline:a") == "a\nmore\nmore"


@pytest.mark.skipif(not machine().landlock, reason="Landlock is not enabled in this kernel")
def test_in_place_by_landlock_is_refused_before_anything_runs(checkout: Path, call: Call) -> None:
    result = call("run", "w.dot", "--in-place", "--sandbox", "landlock", fails=Refused)
    assert "Landlock does not prevent a command" in str(result.exception)
    assert (checkout / "a").read_text() == "a\n" and not list((find_home() / "pipelines").glob("*/*"))


def test_a_signal_ends_the_running_work_and_prints_how_to_continue(user: UserWorld, tmp_path: Path) -> None:
    user.use_mode("none")  # the pid that the tool prints has no meaning outside of a sandbox
    path = tmp_path / "s.dot"
    path.write_text(f'digraph {{ {ENDS} s [shape=parallelogram, tool_command="echo $$ > pid; exec sleep 76"]; '
                    "start -> s -> x }")
    process = subprocess.Popen([*PROGRAM, "pipeline", "run", path, "--run-dir", tmp_path / "r"], cwd=tmp_path,
                               stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    pid = tmp_path / "pid"
    tool = int(wait_for("the tool began", lambda: pid.exists() and pid.read_text().strip()))
    process.terminate()
    _, said = process.communicate()
    assert process.returncode == 130
    assert f"garrison resume {tmp_path / 'r'}" in said
    assert is_gone(tool)
    assert json.loads((tmp_path / "r/checkpoint.json").read_text())["next_nodes"] == ["s"]


def test_a_signal_that_comes_while_a_command_is_being_started_ends_it_too(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from garrison.pipeline.handlers import tool

    begun: list[int] = []

    class Struck(tool.Job):
        @classmethod
        def start(cls, *given: Any, **named: Any) -> tool.Job:
            job = super().start(*given, **named)
            begun.append(job.pid)
            os.kill(os.getpid(), signal.SIGTERM)
            return job

    monkeypatch.setattr(tool, "Job", Struck)
    monkeypatch.chdir(tmp_path)  # in a git checkout it would work in a worktree and leave a branch
    path = tmp_path / "s.dot"
    path.write_text(f'digraph {{ {ENDS} s [shape=parallelogram, tool_command="exec sleep 76"]; start -> s -> x }}')
    ours = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a shell's background job
    try:
        assert run_command(garrison, ["pipeline", "run", str(path), "--run-dir", str(tmp_path / "r")]) == 130
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, ours)
    assert is_gone(*begun)


def test_the_commands_for_launched_runs_serve_these_too(call: Call, tmp_path: Path) -> None:
    def top(*words: object) -> Result:
        return CliRunner().invoke(garrison, [*map(str, words)])

    Path("s.dot").write_text(f"""digraph {{ {ENDS} s [type="wait.signal", signal=go]; t [type="wait.signal", signal=on]
        start -> s -> t -> x }}""")
    call("run", "gate.dot", "--run-dir", "talk")
    assert call("run", "s.dot", "--run-dir", tmp_path / "r").exit_code == 3
    assert "gate asks: Ship?" in top("status", "talk").stderr
    assert isinstance(top("answer", "gate", "perhaps", "--run", "talk").exception, UsageError)
    assert "answer recorded" in top("answer", "gate", "A", "--run", "talk").stderr
    assert call("resume", "talk").exit_code == 0
    assert "signal go sent" in top("signals", "send", "go", '{"n": 7}', "--run", tmp_path / "r").stderr
    call("signal", tmp_path / "r", "on", "--data", '{"n": 1}')
    body = json.loads(call("resume", tmp_path / "r", "--json").stdout)
    assert [body["status"], body["context"]["signal.go"], body["context"]["signal.on"]] == [
        "success", {"n": 7}, {"n": 1}]
    assert "answer" not in call("--help").stdout and "signal" not in call("--help").stdout
