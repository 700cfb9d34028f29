"""The built-in handlers: tools and what they leave, gates and signals over suspension, pipelines within pipelines."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from garrison import plugins
from garrison.errors import NotFound, Refused, Shortage, UsageError
from garrison.pipeline import Call, Event, Outcome, Question, RunResult, parse, run
from garrison.pipeline.handlers import tool as handler
from garrison.pipeline.handlers.call import MAX_DEPTH
from garrison.pipeline.handlers.registry import Registry, load_offered
from garrison.pipeline.store import THRESHOLD, Artifacts, RunDirectory
from support import DEADLINE, UserWorld, is_gone, wait_for

pytestmark = pytest.mark.usefixtures("quick_retries")

ENDS = "start [shape=Mdiamond]; x [shape=Msquare];"
GATE = f"""digraph {{ {ENDS} gate [shape=hexagon, label="Ship it?"]; ship [type=work]; fix [type=work]
    start -> gate; gate -> ship [label="[A] Approve"]; gate -> fix [label="Fix"]; ship -> x; fix -> gate }}"""


@pytest.fixture(autouse=True)
def _without_a_sandbox(user: UserWorld) -> None:
    """Run tools without a sandbox: their pids must mean something outside."""
    user.use_mode("none")


def ok(_call: Call) -> Outcome:
    return Outcome("success")


def red(_call: Call) -> Outcome:
    return Outcome("fail", failure_reason="red")


def tool(attrs: str, tree: Path, **options: Any) -> RunResult:
    return run(f"digraph {{ {ENDS} t [shape=parallelogram, {attrs}]; start -> t -> x }}", tree=tree, **options)


# ---- tool ------------------------------------------------------------------------------------------------------------


def test_a_tool_runs_in_the_tree_with_its_environment(tmp_path: Path) -> None:
    result = tool('tool_command="pwd; echo $GARRISON_PIPELINE_NODE $GARRISON_PIPELINE_ATTEMPT $MINE"', tmp_path,
                  environ={"MINE": "yes", "PATH": os.environ["PATH"]})
    assert result.context["tool.output"] == f"{tmp_path}\nt 1 yes"
    assert "cannot start" in tool("tool_command=true", tmp_path / "nowhere").reason


def test_a_tool_waits_while_the_machine_has_no_room_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                             caplog: pytest.LogCaptureFixture) -> None:
    """Regression: with no descriptor left for its network it failed, with advice to open that."""
    tried: list[object] = []

    def no_room_at_first(*arguments: Any) -> Any:
        tried.append(arguments)
        if len(tried) < 3:
            raise Shortage("no room for a network namespace")
        return prepare(*arguments)

    prepare = handler.checkout_network
    monkeypatch.setattr(handler, "checkout_network", no_room_at_first)
    monkeypatch.setattr(handler, "retry_pause", lambda _number: 0.0)
    assert tool('tool_command="echo done"', tmp_path).context["tool.output"] == "done"
    assert len(tried) == 3 and "t waits 0 s: no room for a network namespace" in caplog.text


LITTLE_ROOM = """
import os, resource
from garrison.sandbox import network
highest = max(map(int, os.listdir("/proc/self/fd")))
resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, highest + 1))
network.create()
"""


def test_a_shortage_of_descriptors_for_a_network_is_no_refusal() -> None:
    done = subprocess.run([sys.executable, "-c", LITTLE_ROOM], capture_output=True, text=True, check=False)
    assert "Shortage: no room for a network namespace" in done.stderr


def test_a_user_who_may_make_no_network_makes_one_in_a_user_namespace() -> None:
    """Root may make it itself, unless the machine has taken that right."""
    made = "from garrison.sandbox import network; print(network.create().user is not None)"
    limited = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"] if os.geteuid() == 0 else []
    done = [subprocess.run([*start, sys.executable, "-c", made], capture_output=True, text=True, check=True).stdout
            for start in (limited, [])]
    assert done == ["True\n", f"{os.geteuid() != 0}\n"]


def test_a_tool_that_times_out_is_killed_with_its_descendants(tmp_path: Path) -> None:
    result = tool('timeout=1s, tool_command="sleep 77 & echo $! > inner; wait"', tmp_path, run_dir=tmp_path / "r")
    assert (result.status, result.reason) == ("fail", "timed out after 1 s")
    assert is_gone(int((tmp_path / "inner").read_text()))


def test_a_tool_has_its_output_and_exit_code_and_is_retried_if_that_helps(tmp_path: Path) -> None:
    """A missing command stays missing; 147 and 255 are no deadly signals."""
    for command, attempts, code in (("exit 0", 1, 0), ("no-such-command-here", 1, 127), ("exit 126", 1, 126),
                                    ("exit 3", 2, 3), ("exit 147", 2, 147), ("exit 255", 2, 255)):
        (tmp_path / "tried").unlink(missing_ok=True)
        result = tool('max_retries=1, timeout=20s, '
                      f'tool_command="echo x >> tried; echo out; echo err >&2; {command}"', tmp_path)
        assert (result.status, (tmp_path / "tried").read_text()) == ("fail" if code else "success", "x\n" * attempts)
        assert (result.context["tool.output"], result.context["tool.exit_code"]) == ("out", code)
        assert code != 3 or result.reason == "exit code 3: err"


def test_a_tool_that_reports_on_stderr_is_not_silent(tmp_path: Path) -> None:
    run = tool('silence=1, tool_command="for i in 1 2 3 4 5 6; do sleep 0.25; echo . >&2; done"', tmp_path)
    assert run.status == "success", run.reason


def test_a_tool_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GARRISON_BEAT_TIMEOUT", "0.3")
    run = tool('tool_command="kill -STOP $$"', tmp_path)
    assert run.status == "fail" and "1 of its 2 processes are stopped (SIGSTOP)" in run.reason
    run = tool('tool_command="sleep 600", silence=300ms', tmp_path)
    assert run.status == "fail" and "it hung and was ended: it was silent for" in run.reason


def test_a_cancelled_tool_is_killed(tmp_path: Path) -> None:
    graph = f"""digraph {{ {ENDS} fan [shape=component, join_policy=first_success]; j [shape=tripleoctagon]
        slow [shape=parallelogram, tool_command="echo $$ > pid; exec sleep 78"]; fast [type=work]
        start -> fan; fan -> slow; fan -> fast; slow -> j; fast -> j; j -> x }}"""

    async def fast(_call: Call) -> Outcome:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
            await asyncio.sleep(0.005)
        return Outcome("success")

    assert run(graph, tree=tmp_path, handlers={"work": fast}).status == "success"
    assert is_gone(int((tmp_path / "pid").read_text()))


def test_leftovers_of_a_killed_engine_are_killed_before_the_next_attempt(tmp_path: Path) -> None:
    graph = f"""digraph {{ {ENDS} t [shape=parallelogram,
        tool_command="echo $$ >> pids; [ $GARRISON_PIPELINE_ATTEMPT = 2 ] || exec sleep 79"]; start -> t -> x }}"""
    child = os.fork()
    if child == 0:
        try:
            run(graph, tree=tmp_path, run_dir=tmp_path / "r")
        finally:
            os._exit(0)
    pids = tmp_path / "pids"
    first = int(wait_for("the tool began", lambda: pids.exists() and pids.read_text().strip()))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert not is_gone(first)
    assert run(run_dir=tmp_path / "r", resume=True).status == "success"
    assert is_gone(first)
    assert len(pids.read_text().split()) == 2
    assert (tmp_path / "r/t/attempts/1/output.log").exists()


def test_a_tool_may_report_an_outcome(tmp_path: Path) -> None:
    for said, status, label in (
            ({"outcome": "ok", "preferred_label": "Go"}, "success", "Go"),
            ({"outcome": "partial"}, "partial_success", ""), ("nonsense", "fail", ""),
            ({"outcome": "success", "exit": 4}, "fail", "")):
        (tmp_path / "said.json").write_text(said if isinstance(said, str) else json.dumps(said))
        outcome = tool('tool_command="cp said.json $GARRISON_STATUS_FILE; ! grep -q exit said.json"',
                       tmp_path).node_outcomes["t"]
        assert (outcome.status, outcome.preferred_label) == (status, label)


# ---- wait.human ------------------------------------------------------------------------------------------------------


def test_a_gate_without_an_answerer_suspends_the_run_until_a_file_answers(tmp_path: Path) -> None:
    waiting = run(GATE, handlers={"work": ok}, run_dir=tmp_path / "r")
    assert waiting.status == "waiting"
    assert "Ship it?" in waiting.reason
    assert f"garrison answer gate LABEL --run {tmp_path / 'r'}, with one of [A] Approve, [F] Fix" == waiting.how
    again = run(run_dir=tmp_path / "r", resume=True, handlers={"work": ok})
    assert (again.status, again.completed_nodes) == ("waiting", ["start"])
    for number, (answer, status) in enumerate((("fix", "waiting"), ("nonsense", "waiting"), ("A", "success")), 1):
        RunDirectory(tmp_path / "r").write_answer("gate#1" if number == 1 else "gate#2", answer)
        assert run(run_dir=tmp_path / "r", resume=True, handlers={"work": ok}).status == status
    assert [*(tmp_path / "r/answers").glob("*.refused")]


def test_an_answer_that_fits_no_option_is_asked_again_for_a_while() -> None:
    asked: list[Question] = []

    def answer(question: Question) -> str:
        asked.append(question)
        return "maybe" if len(asked) < 3 else "approve"

    assert run(GATE, handlers={"work": ok}, answerer=answer).completed_nodes == ["start", "gate", "ship", "x"]
    assert [bool(question.problem) for question in asked] == [False, True, True]
    assert run(GATE, handlers={"work": ok}, answerer=lambda _question: "maybe").status == "waiting"

    graph = GATE.replace('label="Fix"', 'label="Adjust"').replace("ship -> x", "ship -> x; gate -> x")
    asked.clear()
    run(graph, handlers={"work": ok}, answerer=lambda question: asked.append(question) or "x")
    assert [(one.key, one.label) for one in asked[0].options] == [("A", "Approve"), ("2", "Adjust"), ("X", "x")]
    graph = f'digraph {{ {ENDS} gate [shape=hexagon, "human.type"=free_text]; start -> gate -> x }}'
    result = run(graph, answerer=["as you like"])
    assert (result.status, result.context["human.gate.text"]) == ("success", "as you like")


def test_a_gate_with_a_time_limit_takes_its_default() -> None:
    for attrs, status, nodes in (
            ('timeout=50ms, "human.default_choice"=fix', "waiting", ["start", "gate", "fix"]),
            ('timeout=50ms, "human.default_choice"=Approve', "success", ["start", "gate", "ship", "x"]),
            ('human_timeout_seconds="0.05", human_default_choice=ship', "success", ["start", "gate", "ship", "x"]),
            ("timeout=50ms", "fail", ["start", "gate"]),
            ('timeout=50ms, "human.default_choice"=Perhaps', "fail", ["start", "gate"])):
        graph = GATE.replace("shape=hexagon", f"shape=hexagon, {attrs}").replace(
            "fix -> gate", "fix -> later; later [shape=hexagon]; later -> x")
        result = run(graph, handlers={"work": ok})
        assert (result.status, result.completed_nodes) == (status, nodes)


def test_the_time_limit_counts_from_the_first_question_across_a_death(tmp_path: Path) -> None:
    graph = GATE.replace("shape=hexagon", 'shape=hexagon, timeout=30, "human.default_choice"=ship')
    child = os.fork()
    if child == 0:
        try:
            run(graph, handlers={"work": ok}, run_dir=tmp_path / "r")
        finally:
            os._exit(0)
    question = tmp_path / "r/gate/question.json"
    wait_for("the question is put", question.exists)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    body = json.loads(question.read_text())
    question.write_text(json.dumps({**body, "asked_at": body["asked_at"] - 60}))
    assert run(run_dir=tmp_path / "r", resume=True, handlers={"work": ok}).completed_nodes[-2:] == ["ship", "x"]


def test_a_waiting_gate_gets_its_answer_while_others_work(tmp_path: Path) -> None:
    """Its branch continues before the other has ended: the other waits for that."""
    graph = f"""digraph {{ {ENDS} fan [shape=component]; gate [shape=hexagon]; after [type=after]; other [type=other]
        j [shape=tripleoctagon]; start -> fan; fan -> gate; gate -> after [label=Go]; after -> j
        fan -> other -> j; j -> x }}"""
    answered = threading.Event()

    def other(call: Call) -> Outcome:
        assert call.run.directory
        path = wait_for("the gate asks", lambda: next(call.run.directory.glob("gate*/question.json"), None))
        RunDirectory(call.run.directory).write_answer(json.loads(path.read_text())["id"], "go")
        assert answered.wait(DEADLINE)
        return Outcome("success")

    def after(_call: Call) -> Outcome:
        answered.set()
        return Outcome("success")

    assert run(graph, handlers={"other": other, "after": after}, run_dir=tmp_path / "r").status == "success"


# ---- wait.signal -----------------------------------------------------------------------------------------------------


def test_a_signal_is_taken_by_one_visit_and_may_come_too_late(tmp_path: Path) -> None:
    graph = f"""digraph {{ {ENDS} s [type="wait.signal", signal=deployed]; t [type="wait.signal", signal=deployed]
        late [type="wait.signal", timeout=50ms]; start -> s -> t -> late -> x }}"""
    assert run(graph, run_dir=tmp_path / "r").status == "waiting"
    files = RunDirectory(tmp_path / "r")
    files.write_signal("deployed", '{"version": 7}')
    waiting = run(run_dir=tmp_path / "r", resume=True)
    assert (waiting.status, waiting.context["signal.deployed"]) == ("waiting", {"version": 7})
    files.write_signal("deployed", "")
    ended = run(run_dir=tmp_path / "r", resume=True)
    assert (ended.context["signal.deployed"], ended.reason) == (True, "the signal late did not arrive in time")


# ---- pipelines within pipelines --------------------------------------------------------------------------------------


@pytest.fixture
def outer(tmp_path: Path) -> Path:
    (tmp_path / "inner.dot").write_text(f"digraph inner {{ {ENDS} i [type=work]; start -> i -> x }}")
    path = tmp_path / "outer.dot"
    path.write_text(f"""digraph outer {{ {ENDS} sub [type=subgraph, graph_ref="inner.dot", "var.who"=me]
        start -> sub -> x }}""")
    return path


@pytest.mark.smoke
def test_a_subgraph_is_one_node(outer: Path, tmp_path: Path) -> None:
    def work(call: Call) -> Outcome:
        assert (call.context["who"], call.context["given"]) == ("me", 1)
        return Outcome("success", context_updates={"made": 2})

    result = run(outer, initial={"given": 1}, handlers={"work": work}, run_dir=tmp_path / "r")
    assert (result.completed_nodes, result.context["made"]) == (["start", "sub", "x"], 2)
    assert "who" not in result.context or result.context["who"] == "me"
    assert (tmp_path / "r/children/sub#1.0/checkpoint.json").is_file()
    assert run(outer, handlers={"work": red}).reason == "its pipeline failed: red"


def test_a_gate_within_a_subgraph_makes_both_wait(outer: Path, tmp_path: Path) -> None:
    (tmp_path / "inner.dot").write_text(GATE)
    waiting = run(outer, handlers={"work": ok}, run_dir=tmp_path / "r")
    assert waiting.status == "waiting"
    assert "children" in waiting.how
    result = run(run_dir=tmp_path / "r", resume=True, handlers={"work": ok}, answerer={"gate": "ship"})
    assert result.completed_nodes == ["start", "sub", "x"]


def test_a_pipeline_that_runs_itself_or_has_no_valid_file_fails_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "bad.dot").write_text("graph {")
    path = tmp_path / "self.dot"
    for name, said in (("self.dot", f"{MAX_DEPTH} deep at most"), ("no.dot", "there is no"), ("bad.dot", "bad.dot")):
        path.write_text(f'digraph {{ {ENDS} sub [type=subgraph, graph_ref="{name}"]; start -> sub -> x }}')
        result = run(path)
        assert result.status == "fail" and said in result.reason and "\n" not in result.reason
    with pytest.raises(Refused, match="names no pipeline"):
        run(f"digraph {{ {ENDS} sub [type=subgraph]; start -> sub -> x }}")


MANAGED = f"""digraph outer {{ "stack.child_dotfile"="inner.dot"; {ENDS}
    m [shape=house, prompt="Hurry up", "manager.poll_interval"=20ms ATTRS]; start -> m -> x }}"""


def managed(attrs: str, directory: Path, work: Any, inner: str = "i [type=work]; start -> i -> x",
            **options: Any) -> RunResult:
    directory.mkdir(exist_ok=True)
    (directory / "inner.dot").write_text(f"digraph inner {{ {ENDS} {inner} }}")
    path = directory / "outer.dot"
    path.write_text(MANAGED.replace(" ATTRS", attrs and f", {attrs}"))
    return run(path, handlers={"work": work}, run_dir=directory / "r", **options)


def test_a_manager_ends_with_its_child(tmp_path: Path) -> None:
    async def slow(_call: Call) -> Outcome:
        await asyncio.sleep(60)
        return Outcome("success")

    result = managed("", tmp_path / "done", ok)
    assert (result.status, result.context["stack.child.status"]) == ("success", "completed")
    assert result.context["stack.child.outcome"] == "success"
    result = managed("", tmp_path / "failed", red)
    assert (result.status, result.reason) == ("fail", "its pipeline failed: red")
    result = managed('"manager.max_cycles"=3', tmp_path / "slow", slow)
    assert result.reason == "the child of m was not done after 3 cycles"


def test_a_manager_stops_its_child_when_its_condition_is_met(tmp_path: Path) -> None:
    ended: list[str] = []

    async def work(call: Call) -> Outcome:
        if call.node.id == "i":
            return Outcome("success")
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(call.node.id)
        return Outcome("success")

    result = managed('"manager.stop_condition"="context.stack.child.completed>=2"', tmp_path, work,
                     "i [type=work]; k [type=work]; start -> i -> k -> x")
    assert result.status == "success"
    assert ended == ["k"]


def test_a_manager_steers_the_next_agent_of_its_child(tmp_path: Path) -> None:
    prompts: list[str] = []

    async def work(call: Call) -> Outcome:
        assert call.run.directory
        while not (call.run.directory / "intervention.md").exists():
            await asyncio.sleep(0.005)
        return Outcome("success")

    def agent(call: Call) -> str:
        prompts.append(call.text)
        return "done"

    result = managed('"manager.actions"="observe,steer,wait", "manager.steer_cooldown"=1h', tmp_path, work,
                     "w [type=work]; a [prompt=build]; start -> w -> a -> x", agent=agent)
    assert result.status == "success"
    assert prompts[0].startswith("Hurry up")
    assert prompts[0].endswith("build")


def test_an_agent_that_is_killed_is_steered_again(tmp_path: Path) -> None:
    """Regression: a manager's message was removed as the agent started, so a successor missed it."""
    (tmp_path / "a.dot").write_text(f"digraph {{ {ENDS} a [prompt=build]; b [prompt=check]; start -> a -> b -> x }}")
    (tmp_path / "r").mkdir()
    prompts: list[str] = []

    async def agent(call: Call) -> str:
        prompts.append(call.text)
        if len(prompts) == 1:
            (tmp_path / "r/intervention.md").write_text("Hurry up")
        if len(prompts) == 2:
            raise KeyboardInterrupt
        return "done"

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "a.dot", agent=agent, run_dir=tmp_path / "r")
    assert run(None, agent=agent, run_dir=tmp_path / "r", resume=True).status == "success"
    assert [text.startswith("Hurry up") for text in prompts] == [False, True, True]
    assert not (tmp_path / "r/intervention.md").exists()


# ---- codergen --------------------------------------------------------------------------------------------------------


def test_nodes_of_a_thread_share_a_session_and_others_get_a_preamble(tmp_path: Path) -> None:
    graph = f"""digraph {{ goal=Greet; {ENDS} a [prompt=plan, fidelity=full, thread_id=t]; b [prompt=build]
        c [prompt=check, fidelity=full, thread_id=t]; d [prompt=tell]; start -> a -> b -> c
        c -> d [fidelity="summary:high"]; d -> x }}"""
    seen: list[tuple[str, str, str | None, str]] = []

    async def agent(call: Call) -> str:
        assert call.carried
        seen.append((call.node.id, call.carried.fidelity, call.session, call.text))
        call.session = call.session or f"session-of-{call.carried.thread}"
        return f"did {call.node.id}"

    assert run(graph, agent=agent, run_dir=tmp_path / "r").status == "success"
    assert [one[:3] for one in seen] == [("a", "full", None), ("b", "compact", None), ("c", "full", "session-of-t"),
                                         ("d", "summary:high", None)]
    assert seen[0][3] == "plan"
    assert "Goal: Greet" in seen[1][3]
    assert "- a: success (did a)" in seen[1][3]
    assert seen[2][3] == "check"
    assert "last_response: did c" in seen[3][3]


def test_a_lost_session_is_replaced_by_a_long_preamble(tmp_path: Path) -> None:
    graph = f"""digraph {{ {ENDS} node [fidelity=full, thread_id=t]; a [prompt=plan]; b [prompt=build]; c [prompt=check]
        start -> a -> b -> c -> x }}"""
    texts: dict[str, str] = {}

    def agent(call: Call) -> str:
        if call.node.id == "b" and call.attempt == 1:
            raise KeyboardInterrupt
        texts[call.node.id] = call.text
        return f"did {call.node.id}"

    async def interrupted(call: Call) -> str:
        return agent(call)

    with pytest.raises(KeyboardInterrupt):
        run(graph, agent=interrupted, run_dir=tmp_path / "r")
    assert run(run_dir=tmp_path / "r", resume=True, agent=agent).status == "success"
    assert "- a: success" in texts["b"]
    assert "the attempt before was interrupted" in texts["b"]
    assert texts["c"] == "check"


def test_results_of_agents(tmp_path: Path) -> None:
    graph = f"digraph {{ {ENDS} a [prompt=do]; start -> a -> x }}"
    said: object
    for said, status in (("text", "success"), (Outcome("partial_success"), "partial_success"),
                         ({"outcome": "fail"}, "fail"), (None, "fail"), (7, "fail")):
        assert run(graph, agent=lambda _call, said=said: said).node_outcomes["a"].status == status

    def agent(call: Call) -> str:
        assert call.folder
        (call.folder / "said.json").write_text('{"outcome": "fail", "failure_reason": "cannot"}')
        return "I tried"

    assert run(graph, agent=agent, run_dir=tmp_path / "r").reason == "cannot"
    assert (tmp_path / "r/a/response.md").read_text() == "I tried"


# ---- registry and artifacts ------------------------------------------------------------------------------------------


def test_packages_may_offer_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        name, value, dist = "offered.kind", "somewhere:Handler", None

        def load(self) -> Any:
            return Offered

    class Offered:
        def __call__(self, _call: Call) -> str:
            return "ok"

    class Broken(Point):
        def load(self) -> Any:
            raise ImportError("no such thing")

    def install(*points: Any) -> None:
        plugins.load.cache_clear()
        load_offered.cache_clear()
        monkeypatch.setattr(plugins, "offered", lambda group: {
            each.name: each for each in points if group == "garrison.handlers"})

    install(Point())
    assert run(f'digraph {{ {ENDS} a [type="offered.kind"]; start -> a -> x }}').status == "success"
    assert "offered.kind" in Registry().names()
    install(Broken())
    assert run(f"digraph {{ {ENDS} a [shape=parallelogram, command=true]; start -> a -> x }}").status == "success"
    with pytest.raises(UsageError, match=r"handler offered.kind .* cannot be loaded: ImportError: no such thing; "):
        parse_and_check("offered.kind")
    with pytest.raises(UsageError, match="which has no handler"):
        parse_and_check("any")
    install()


def parse_and_check(type_: str) -> None:
    Registry().check(parse(f'digraph {{ {ENDS} a [type="{type_}"]; start -> a -> x }}'))


def test_a_handler_that_is_an_empty_collection_is_a_handler() -> None:
    class Recorder(list[str]):
        def __call__(self, call: Any) -> None:
            self.append(call.node.id)

    recorder = Recorder()
    assert Registry({"deploy": recorder}).get("deploy") is recorder


def test_artifacts_are_files_when_they_are_large(tmp_path: Path) -> None:
    store = Artifacts(tmp_path / "artifacts")
    large = {"text": "x" * THRESHOLD}
    assert not store.store("small", "a note", [1, 2]).is_file_backed
    assert store.store("build/log#1", "the log", large).is_file_backed
    assert (store.retrieve("small"), store.retrieve("build/log#1")) == ([1, 2], large)
    again = Artifacts(tmp_path / "artifacts")
    assert [info.id for info in again.list()] == ["build/log#1"]
    assert again.retrieve("build/log#1") == large
    again.clear()
    assert not again.has("build/log#1")
    with pytest.raises(NotFound):
        again.retrieve("build/log#1")
    for bad in ("../up", "", "a b"):
        with pytest.raises(UsageError):
            store.store(bad, "", 1)
    with pytest.raises(UsageError):
        store.store("bad", "", object())

    def work(call: Call) -> Outcome:
        assert call.run.artifacts
        call.run.artifacts.store("report", "the report", "x" * THRESHOLD)
        call.emit("ReportWritten", pages=3)
        return Outcome("success")

    events: list[Event] = []
    run(f"digraph {{ {ENDS} a [type=work]; start -> a -> x }}", handlers={"work": work}, run_dir=tmp_path / "r",
        on_event=events.append)
    assert (tmp_path / "r/artifacts/report.json").stat().st_size > THRESHOLD
    assert [event.data["pages"] for event in events if event.kind == "ReportWritten"] == [3]
