"""`garrison.pipeline.run` in programs: handlers, context, retries, branches, refusals, resume."""

from __future__ import annotations

import asyncio
import copy
import json
import operator
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from garrison.errors import Refused, UsageError
from garrison.pipeline import Call, Event, Outcome, RunResult, parse, run, run_async
from garrison.pipeline.flow import Finished
from garrison.pipeline.graph import ContextView
from garrison.pipeline.handlers.call import Waiting
from garrison.pipeline.store import BEGUN, KINDS, RunDirectory, pack_event, read_run, unpack_event
from garrison.values import asdict

pytestmark = pytest.mark.usefixtures("quick_retries")

ENDS = "start [shape=Mdiamond]; x [shape=Msquare];"
LINE = f"digraph line {{ {ENDS} a [type=work]; b [type=work]; start -> a -> b -> x }}"
LOOP = f"""digraph loop {{ max_steps=200 {ENDS} a [type=work]; c [shape=diamond];
    start -> a -> c; c -> x [condition="context.n>=5"]; c -> a [condition="context.n<5"] }}"""
BRANCHES = f"""digraph branches {{ {ENDS} fan [shape=component]; l [type=work]; r [type=work]; j [shape=tripleoctagon];
    start -> fan; fan -> l; fan -> r; l -> j; r -> j; j -> x }}"""


def ok(call: Call) -> Outcome:
    return Outcome("success", context_updates={f"seen.{call.node.id}": call.visit})


def counting(call: Call) -> Outcome:
    return Outcome("success", context_updates={"n": call.context.get("n", 0) + 1})


def test_importing_the_package_loads_neither_the_engine_nor_lark() -> None:
    dear = "{'lark', 'asyncio', 'garrison.pipeline.engine'}"
    code = f"import sys, garrison.pipeline; print(sorted({dear} & {{*sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_graph_may_be_a_graph_a_path_or_a_text(tmp_path: Path) -> None:
    result = run(LINE, initial={"ticket": 42}, handlers={"work": ok})
    assert (result.status, result.reason) == ("success", "")
    assert result.completed_nodes == ["start", "a", "b", "x"]
    assert result.node_outcomes["a"] == Outcome("success", context_updates={"seen.a": 1})
    assert (result.context["ticket"], result.context["seen.b"]) == (42, 1)
    told = json.loads(json.dumps(result.to_data()))
    assert told["node_outcomes"] == dict.fromkeys(("start", "a", "b", "x"), "success")
    path = tmp_path / "line.dot"
    path.write_text(LINE)
    for graph in (parse(LINE), path, str(path)):
        assert run(graph, handlers={"work": ok}).status == "success"


def test_plain_async_and_object_handlers() -> None:
    async def later(_call: Call) -> Outcome:
        await asyncio.sleep(0)
        return Outcome("success")

    class Deploy:
        def execute(self, _call: Call) -> str:
            return "passed"

    graph = f"digraph {{ {ENDS} a [type=plain]; b [type=later]; c [type=deploy]; start -> a -> b -> c -> x }}"
    result = run(graph, handlers={"plain": lambda _call: {"outcome": "ok", "context_updates": {"k": [1]}},
                                  "later": later, "deploy": Deploy()})
    assert result.status == "success"
    assert result.context["k"] == [1]


def test_run_works_within_a_running_loop_and_in_parallel_with_others(tmp_path: Path) -> None:
    async def main() -> tuple[RunResult, RunResult, RunResult]:
        inner = run(LINE, handlers={"work": ok})
        return inner, *await asyncio.gather(run_async(LINE, handlers={"work": ok}), run_async(LOOP, handlers={
            "work": counting}))

    assert [result.status for result in asyncio.run(main())] == ["success"] * 3

    results: dict[int, RunResult] = {}

    def one(number: int) -> None:
        results[number] = run(LOOP, initial={"n": number}, handlers={"work": counting}, run_dir=tmp_path / str(number))

    threads = [threading.Thread(target=one, args=(number,)) for number in (0, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {number: result.completed_nodes.count("a") for number, result in results.items()} == {0: 5, 3: 2}


def test_a_handler_reads_and_copies_what_earlier_ones_wrote_and_cannot_write_it() -> None:
    def reader(call: Call) -> Outcome:
        with pytest.raises(TypeError):
            call.context["mine"] = 1  # type: ignore[index]
        return Outcome("success", context_updates={"path": [*call.context.get("path", []), call.node.id]})

    assert run(LINE, handlers={"work": reader}).context["path"] == ["a", "b"]

    def storing(call: Call) -> Outcome:
        assert json.loads(json.dumps([call.context, call.attrs]))[1]["type"] == "work"
        assert asdict(call.node) == asdict(copy.deepcopy(call.node))
        mine = copy.deepcopy(call.attrs)
        mine["x_mine"] = "1"  # type: ignore[index]
        for change in (lambda: call.attrs.update(mine), call.context.clear):  # type: ignore[attr-defined]
            with pytest.raises(TypeError):
                change()
        return Outcome("success")

    done = run(LINE, handlers={"work": storing})
    assert done.status == "success", done.reason

    kept: list[list[int]] = []

    def keeps(_call: Call) -> Outcome:
        kept.append([1])
        return Outcome("success", context_updates={"list": kept[-1]})

    def changes(call: Call) -> Outcome:
        kept[0].append(2)
        return Outcome("success" if call.context["list"] == [1] else "fail")

    graph = f"digraph {{ {ENDS} a [type=keeps]; b [type=changes]; start -> a -> b -> x }}"
    assert run(graph, handlers={"keeps": keeps, "changes": changes}).status == "success"


def test_an_exception_is_a_failure_and_a_programming_error_is_not_retried() -> None:
    graph = f"digraph {{ {ENDS} a [type=work, max_retries=2]; start -> a -> x }}"
    raised: BaseException
    for raised, tries in ((TypeError("no"), 1), (KeyError("k"), 1), (RuntimeError("busy"), 3), (SystemExit(3), 3)):
        calls: list[int] = []

        def work(call: Call, raised: BaseException = raised, calls: list[int] = calls) -> Outcome:
            calls.append(call.attempt)
            raise raised

        for way in (run, lambda *given, **options: asyncio.run(run_async(*given, **options))):
            own = way(graph, handlers={"work": work})
            assert own.status == "fail"
            assert type(raised).__name__ in own.reason
            assert calls == list(range(1, tries + 1))
            calls.clear()


def test_a_handler_that_returns_nonsense_has_failed() -> None:
    for returned in (3.5, " ", b"success"):
        result = run(LINE, handlers={"work": lambda _call, returned=returned: returned})
        assert result.status == "fail"
        assert "return an Outcome" in result.reason
    for value, said in ((object(), "object"), ({1, 2}, "set"), (float("nan"), "float"), ((1, 2), "tuple"),
                        ({1: 2}, "dict")):
        result = run(LINE, handlers={
            "work": lambda _call, value=value: Outcome("success", context_updates={"bad": value})})
        assert result.status == "fail"
        assert "'bad'" in result.reason
        assert said in result.reason
        with pytest.raises(UsageError, match=r"initial.*'bad'"):
            run(LINE, initial={"bad": value}, handlers={"work": ok})


def test_a_retry_has_its_reason() -> None:
    reasons = []

    def work(call: Call) -> Outcome:
        reasons.append((call.attempt, call.place.reason))
        return Outcome("fail" if call.attempt < 3 else "success", failure_reason=f"no {call.attempt}")

    graph = f"digraph {{ {ENDS} a [type=work, max_retries=3]; start -> a -> x }}"
    assert run(graph, handlers={"work": work}).status == "success"
    assert reasons == [(1, ""), (2, "no 1"), (3, "no 2")]


def test_every_kind_of_handler_has_a_time_limit() -> None:
    async def slow(_call: Call) -> None:
        await asyncio.sleep(60)

    released = threading.Event()
    graph = f"digraph {{ {ENDS} a [type=work, timeout=50ms]; start -> a -> x }}"
    for handler in (slow, lambda _call: released.wait(60)):
        result = run(graph, handlers={"work": handler})
        assert (result.status, result.reason) == ("fail", "timed out after 0.05 s")
    released.set()

    def work(_call: Call) -> None:
        raise TimeoutError("the server")

    graph = f"digraph {{ {ENDS} a [type=work, timeout=60s]; start -> a -> x }}"
    assert run(graph, handlers={"work": work}).reason == "TimeoutError: the server"


def test_a_listener_that_fails_does_not_end_the_run() -> None:
    def listener(_event: Event) -> None:
        raise ValueError("deaf")

    with pytest.warns(RuntimeWarning, match="on_event failed at PipelineStarted"):
        assert run(LINE, handlers={"work": ok}, on_event=listener).status == "success"


def test_branches_run_concurrently() -> None:
    """Each branch waits until the other has started: one after the other they would wait for ever."""
    meeting = threading.Barrier(2, timeout=60)

    async def meets_async(call: Call) -> Outcome:
        await asyncio.to_thread(meeting.wait)
        return ok(call)

    def meets(call: Call) -> Outcome:
        meeting.wait()
        return ok(call)

    for handler in (meets_async, meets):
        result = run(BRANCHES, handlers={"work": handler})
        assert result.status == "success"
        assert [one["status"] for one in result.context["parallel.results"]] == ["success", "success"]

    ended = []

    async def work(call: Call) -> Outcome:
        if call.node.id == "l":
            return Outcome("success")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append(call.cancelled)
            raise
        return Outcome("success")

    graph = BRANCHES.replace("fan [shape=component]", "fan [shape=component, join_policy=first_success]")
    assert run(graph, handlers={"work": work}).status == "success"
    assert ended == [True]


def test_events_are_in_order() -> None:
    events: list[Event] = []
    run(BRANCHES, handlers={"work": ok}, on_event=events.append)
    kinds = [event.kind for event in events]
    assert {*kinds} <= {*KINDS}
    assert (kinds[0], kinds[-1]) == ("PipelineStarted", "PipelineFinished")
    assert kinds.count("NodeStarted") == 2
    assert {"ParallelBranchStarted", "ParallelBranchFinished", "EdgeFollowed"} <= set(kinds)
    assert [event.node for event in events if event.kind == "NodeFinished"][-1] == "x"


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("graph", "said"), [
    (f"digraph {{ {ENDS} a [type=wrok]; start -> a -> x }}", "node a has the type 'wrok'"),
    (f"digraph {{ {ENDS} a [shape=box, prompt=do]; start -> a -> x }}", "node a is for an agent: no agent"),
    (f"digraph {{ {ENDS} start -> x; x -> start }}", "start_no_incoming"),
    (f'digraph {{ {ENDS} a [type=work]; start -> a; a -> x [condition="="] }}', "condition"),
    (f"digraph {{ {ENDS} a [type=work, on_resume=never]; start -> a -> x }}", "on_resume='never'; use rerun"),
    (f"digraph {{ {ENDS} a [type=work, max_retries=many]; start -> a -> x }}", "max_retries=many"),
])
def test_an_invalid_run_is_refused_before_anything_runs(graph: str, said: str, tmp_path: Path) -> None:
    calls: list[Call] = []
    with pytest.raises((Refused, UsageError)) as caught:
        run(graph, handlers={"work": calls.append}, run_dir=tmp_path / "r")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not calls
    assert not (tmp_path / "r").exists()


def test_types_of_the_engine_cannot_be_replaced() -> None:
    with pytest.raises(UsageError, match="the engine itself does conditional"):
        run(LINE, handlers={"conditional": ok})


# ---- a run directory -------------------------------------------------------------------------------------------------


def test_a_run_directory_has_everything(tmp_path: Path) -> None:
    result = run(LINE, handlers={"work": ok}, run_dir=tmp_path / "r1")
    folder = RunDirectory(tmp_path / "r1")
    checkpoint = json.loads(folder.checkpoint.read_text())
    assert (checkpoint["status"], checkpoint["current_node"], checkpoint["next_nodes"]) == ("success", "x", [])
    assert checkpoint["completed_nodes"] == result.completed_nodes
    assert checkpoint["context"] == result.context
    assert json.loads((folder.node("a") / "status.json").read_text())["outcome"] == "success"
    assert json.loads(folder.manifest.read_text())["run"] == "r1"
    kinds = [json.loads(line)["event"] for line in folder.events.read_text().splitlines()]
    assert (kinds[0], kinds[-1], kinds.count("CheckpointSaved")) == ("PipelineStarted", "PipelineFinished", 2)
    with pytest.raises(Refused, match="already has a run"):
        run(LINE, handlers={"work": ok}, run_dir=tmp_path / "r1")
    assert run(run_dir=tmp_path / "r1", handlers={"work": ok}, resume=True) == result


def interrupted(graph: str, directory: Path, at: Callable[[Call], bool], handler: Callable[[Call], Any],
                **options: Any) -> None:
    """Run until the user interrupts it in the middle of a node."""

    def work(call: Call) -> Any:
        if at(call):
            raise KeyboardInterrupt
        return handler(call)

    with pytest.raises(KeyboardInterrupt):
        run(graph, handlers={"work": work}, run_dir=directory, **options)


def test_resume_continues_in_the_middle_of_a_cycle(tmp_path: Path) -> None:
    whole = run(LOOP, handlers={"work": counting})
    interrupted(LOOP, tmp_path / "r", lambda call: call.visit == 4, counting)
    seen = []

    def watched(call: Call) -> Outcome:
        seen.append((call.visit, call.attempt, call.context["n"]))
        return counting(call)

    result = run(run_dir=tmp_path / "r", handlers={"work": watched}, resume=True)
    assert seen == [(4, 2, 3), (5, 1, 4)]
    assert result.completed_nodes == whole.completed_nodes
    assert result.context == whole.context


def test_resume_runs_only_the_unfinished_branch(tmp_path: Path) -> None:
    done = []

    async def work(call: Call) -> Outcome:
        if call.node.id == "r":
            while not done:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.01)
            raise KeyboardInterrupt
        done.append(call.node.id)
        return ok(call)

    with pytest.raises(KeyboardInterrupt):
        run(BRANCHES, handlers={"work": work}, run_dir=tmp_path / "r")
    again = []
    result = run(run_dir=tmp_path / "r", resume=True, handlers={"work": lambda call: again.append(
        (call.node.id, call.attempt)) or ok(call)})
    assert result.status == "success"
    assert again == [("r", 2)]


def test_a_node_with_side_effects_may_refuse_a_rerun_or_ask_first(tmp_path: Path) -> None:
    graph = LINE.replace("a [type=work]", "a [type=work, side_effecting=true, on_resume=fail]")
    for directory, budget in ((tmp_path / "same", None), (tmp_path / "other", 99)):
        interrupted(graph, directory, lambda call: call.node.id == "a", ok)
        result = run(run_dir=directory, resume=True, handlers={"work": ok}, max_steps=budget)
        assert result.status == "fail"
        assert "on_resume=fail" in result.reason
        assert run(run_dir=directory, resume=True, again=True, handlers={"work": ok}).status == "success"
    graph = LINE.replace("a [type=work]", "a [type=work, side_effecting=true, on_resume=ask]")
    for number, (answer, calls, status) in enumerate((("rerun", ["a", "b"], "success"), ("skip", ["b"], "success"),
                                                      ("fail", [], "fail"))):
        directory = tmp_path / str(number)
        interrupted(graph, directory, lambda call: call.node.id == "a", ok)
        again: list[str] = []

        def work(call: Call, again: list[str] = again) -> Outcome:
            again.append(call.node.id)
            return ok(call)

        asked = run(run_dir=directory, resume=True, handlers={"work": work})
        assert (asked.status, again) == ("waiting", [])
        assert "rerun" in asked.how
        ended = run(run_dir=directory, resume=True, handlers={"work": work}, answerer={"a": answer})
        assert (ended.status, again) == (status, calls)


def test_a_stopped_or_failed_run_continues_on_request(tmp_path: Path) -> None:
    stopped = run(LOOP, handlers={"work": counting}, run_dir=tmp_path / "r", max_steps=6)
    assert (stopped.status, stopped.reason, stopped.steps) == ("fail", "max_steps_exceeded", 6)
    same = run(run_dir=tmp_path / "r", handlers={"work": counting}, resume=True)
    assert same.reason == "max_steps_exceeded"
    more = run(run_dir=tmp_path / "r", handlers={"work": counting}, resume=True, max_steps=100)
    assert more.completed_nodes == run(LOOP, handlers={"work": counting}).completed_nodes
    failed = run(LINE, handlers={"work": lambda _call: "fail"}, run_dir=tmp_path / "failed")
    assert (failed.status, failed.resumable) == ("fail", "again")
    assert run(run_dir=tmp_path / "failed", handlers={"work": ok}, resume=True) == failed
    assert run(run_dir=tmp_path / "failed", handlers={"work": ok}, resume=True, again=True).status == "success"


def test_a_run_has_a_time_limit_that_leaves_it_resumable(tmp_path: Path) -> None:
    graph = LINE.replace("digraph line {", "digraph line { max_pipeline_duration=100ms")

    async def slow(call: Call) -> Outcome:
        await asyncio.sleep(60 if call.attempt == 1 and call.node.id == "b" else 0)
        return ok(call)

    stopped = run(graph, handlers={"work": slow}, run_dir=tmp_path / "r")
    assert (stopped.status, stopped.resumable) == ("fail", "budget")
    assert stopped.reason == "max_pipeline_duration_exceeded"
    assert run(run_dir=tmp_path / "r", handlers={"work": slow}, resume=True).status == "success"


def test_a_changed_graph_is_refused_unless_asked_for(tmp_path: Path) -> None:
    interrupted(LINE, tmp_path / "r", lambda call: call.node.id == "b", ok)
    changed = LINE.replace("b -> x", "b -> c -> x; c [type=work]")
    with pytest.raises(Refused, match="differs from the one"):
        run(changed, run_dir=tmp_path / "r", resume=True, handlers={"work": ok})
    without = LINE.replace("b [type=work]; ", "").replace("-> b ->", "->")
    with pytest.raises(Refused, match="no longer has b"):
        run(without, run_dir=tmp_path / "r", resume=True, changed_graph=True, handlers={"work": ok})
    interrupted_again = [True]

    def once(call: Call) -> Outcome:
        if call.node.id == "c" and interrupted_again:
            interrupted_again.clear()
            raise KeyboardInterrupt
        return ok(call)

    with pytest.raises(KeyboardInterrupt):
        run(changed, run_dir=tmp_path / "r", resume=True, changed_graph=True, handlers={"work": once})
    result = run(run_dir=tmp_path / "r", resume=True, handlers={"work": once})
    assert result.completed_nodes == ["start", "a", "b", "c", "x"]

    interrupted(LINE, tmp_path / "same", lambda call: call.node.id == "b", ok)
    other = LINE.replace("start -> a -> b -> x", "start -> a; a -> b; # one by one\n b -> x")
    assert run(other, run_dir=tmp_path / "same", resume=True, handlers={"work": ok}).status == "success"


def test_a_directory_has_one_owner(tmp_path: Path) -> None:
    refused = []

    def work(call: Call) -> Outcome:
        try:
            run(run_dir=tmp_path / "r", handlers={"work": ok}, resume=True)
        except Refused as error:
            refused.append(str(error))
        return ok(call)

    assert run(LINE, handlers={"work": work}, run_dir=tmp_path / "r").status == "success"
    assert len(refused) == 2
    assert "another process is running" in refused[0]


def test_a_waiting_handler_suspends_the_run_but_no_other_branch(tmp_path: Path) -> None:
    ready: list[int] = []

    def work(call: Call) -> Outcome | Waiting:
        return ok(call) if ready or call.node.id == "a" else Waiting("b waits for the moon", "look up")

    waiting = run(LINE, handlers={"work": work}, run_dir=tmp_path / "r")
    assert (waiting.status, waiting.reason, waiting.how) == ("waiting", "b waits for the moon", "look up")
    assert run(run_dir=tmp_path / "r", handlers={"work": work}, resume=True).status == "waiting"
    ready.append(1)
    assert run(run_dir=tmp_path / "r", handlers={"work": work}, resume=True).completed_nodes == ["start", "a", "b", "x"]

    done: list[str] = []

    def waits(call: Call) -> Outcome | Waiting:
        if call.node.id == "l" and "r" not in done:
            return Waiting("l waits for r")
        done.append(call.node.id)
        return ok(call)

    assert run(BRANCHES, handlers={"work": waits}).status == "success"
    assert done == ["r", "l"]


def test_large_values_are_stored_outside_the_journal(tmp_path: Path) -> None:
    text = "ü" * 50_000
    values = {"text": text, "nested": {"list": [text], "odd\udc80": 1}, "small": {"$blob": "value0"}, "n": 3}
    event = Finished("a#1", Outcome("success", context_updates=values), 1)
    assert unpack_event(json.loads(json.dumps(pack_event(event)))) == event

    interrupted(LINE, tmp_path / "r", lambda call: call.node.id == "b",
                lambda _call: Outcome("success", context_updates=values))
    assert RunDirectory(tmp_path / "r").journal.stat().st_size < 20_000
    assert len([*(tmp_path / "r" / "blobs").iterdir()]) == 2
    context = run(run_dir=tmp_path / "r", resume=True, handlers={"work": ok}).context
    assert {key: context[key] for key in values} == values


def test_a_long_journal_is_compacted_and_still_resumed(tmp_path: Path) -> None:
    long = LOOP.replace(">=5", ">=12").replace("<5", "<12")
    interrupted(long, tmp_path / "r", lambda call: call.visit == 11, counting, snapshot_every=4)
    found = read_run(RunDirectory(tmp_path / "r"))
    assert found.snapshot is not None
    assert len(found.events) < 4
    result = run(run_dir=tmp_path / "r", resume=True, handlers={"work": counting}, snapshot_every=4)
    assert (result.status, result.context["n"]) == ("success", 12)


def test_a_torn_first_record_is_not_a_run(tmp_path: Path) -> None:
    folder = RunDirectory(tmp_path / "r")
    run(LINE, handlers={"work": ok}, run_dir=folder.root)
    first = folder.journal.read_bytes().split(b"\n")[0]
    assert f'"kind":"{BEGUN}"'.encode() in first
    folder.journal.write_bytes(first[:-9])
    assert run(LINE, handlers={"work": ok}, run_dir=folder.root).status == "success"


def test_a_handler_may_change_the_data_of_an_event_it_emitted(tmp_path: Path) -> None:
    """A line of events.jsonl is written later, with the data as they were when the handler emitted them, in order."""
    def emits(call: Call) -> str:
        data = [1]
        call.emit("Mine", seen=data)
        data.append(2)
        return "success"

    run(LINE, handlers={"work": emits}, run_dir=tmp_path / "r")
    events = [json.loads(line) for line in (tmp_path / "r/events.jsonl").read_text().splitlines()]
    assert [event["seen"] for event in events if event["event"] == "Mine"] == [[1], [1]]
    kinds = [event["event"] for event in events if event.get("node") == "a"]
    assert kinds.index("NodeStarted") < kinds.index("Mine") < kinds.index("NodeFinished")


def test_a_handler_cannot_change_the_state_of_the_run(tmp_path: Path) -> None:
    """A resumed run takes the same route as one that was not killed; changes in memory would be lost."""
    refused: list[str] = []

    def attempt(change: Callable[[], None]) -> None:
        try:
            change()
        except TypeError:
            refused.append("refused")

    def work(call: Call) -> dict[str, Any] | None:
        if call.node.id == "a":
            return {"status": "success", "context_updates": {"items": [1], "deep": {"list": [1]}}}
        call.context["items"].append(2)
        call.context["given"]["list"].append(2)
        call.context["deep"]["list"] = []
        attempt(lambda: operator.setitem(call.context, "new", 1))
        attempt(lambda: operator.setitem(call.node.attrs, "label", "x"))
        attempt(lambda: operator.setitem(call.graph.nodes, "x", call.node))
        attempt(lambda: operator.setitem(call.graph.nodes["b"].attrs, "label", "x"))
        attempt(lambda: operator.setitem(call.graph.attrs, "goal", "x"))
        return None

    given = {"given": {"list": [1]}}
    graph = f"digraph {{ {ENDS} a [type=work]; b [type=work]; c [type=work]; start -> a -> b -> c -> x }}"
    result = run(graph, handlers={"work": work}, initial=given, run_dir=tmp_path / "r")
    assert result.status == "success"
    assert (result.context["items"], result.context["deep"], result.context["given"]) == (
        [1], {"list": [1]}, {"list": [1]})
    assert given == {"given": {"list": [1]}}
    assert refused == ["refused"] * 10


def test_changes_of_a_handler_in_its_context_stay_local() -> None:
    reads: list[Callable[[Any], list[int]]] = [
        lambda context: context["items"], lambda context: context.get("items"), lambda context: dict(context)["items"],
        lambda context: {**context}["items"], lambda context: (context | {})["items"],
        lambda context: ({} | context)["items"], lambda context: context.copy()["items"],
        lambda context: dict(context.items())["items"], lambda context: [*context.values()][1],
        lambda context: copy.copy(context)["items"]]
    for read in reads:
        context = {"number": 1, "items": [1]}
        seen = ContextView(context)
        read(seen).append(2)
        assert context == {"number": 1, "items": [1]}
        context["number"] = 2
        assert json.loads(json.dumps(seen))["number"] == 1 == seen.get("number"), "as it was at the call"
        assert seen.get("none", 7) == 7 and "none" not in seen and isinstance(seen, dict)


def test_the_time_limit_of_a_run_applies_although_its_handlers_return_at_once(tmp_path: Path) -> None:
    graph = f"""digraph {{ max_pipeline_duration=50ms; max_steps=1000000; {ENDS} a [type=work]; b [type=work]
        start -> a -> b; b -> a [condition="outcome=success"]; b -> x [condition="outcome=fail"] }}"""

    async def work(_call: Call) -> None:
        return None

    for directory in (None, tmp_path / "r"):
        began = time.monotonic()
        result = run(graph, handlers={"work": work}, run_dir=directory)
        assert (result.reason, result.resumable) == ("max_pipeline_duration_exceeded", "budget")
        assert time.monotonic() - began < 10
