"""Pure parts of remote nodes: placements, jobs, usage, descriptions, and the processes of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from garrison.errors import NotFound, Refused, UsageError
from garrison.hosts.attempts import (
    MAX_JOB,
    MAX_LINE,
    MAX_NOTES,
    MAX_PROGRESS,
    MAX_QUESTION,
    MAX_RESULT,
    AttemptId,
    HostJob,
    JobProgress,
    JobResult,
    decode,
    encode,
    host_run,
)
from garrison.hosts.control import follow, select_processes
from garrison.hosts.host_run import graph_of
from garrison.hosts.orchestrator import record_usage
from garrison.launch.preflight import tasks_here
from garrison.pipeline.parser import parse
from garrison.pipeline.plan import plan_run
from garrison.records import costs
from garrison.records.hosts import Host, HostState
from garrison.records.names import check_run
from garrison.records.placement import check_placement, eligible, parse_placement, queue_of, stated_placement
from garrison.records.remote import RemoteWorkState
from garrison.records.run import Task
from garrison.system.processes import ProcessId, ProcessRow
from garrison.values import replace
from garrison.views.remote import describe_remote

if TYPE_CHECKING:
    from pathlib import Path

BOX2, BOX3 = Host("box2", labels=["gpu"]), Host("box3", slots=8)
JOB = HostJob("home-1", "repo-1", "r1", "work", 1, 1, prompt="Do it.", agent="codex")


@pytest.mark.parametrize(("words", "names"), [
    ("", ()), ("local", ()), ("box2", ("box2",)), ("box3, box2", ("box2", "box3")), ("any", ("any",)),
    ("gpu.a100", ("gpu.a100",))])
def test_a_placement_is_parsed(words: str, names: tuple[str, ...]) -> None:
    assert parse_placement("node a", words) == names


@pytest.mark.parametrize("words", ["../x", "box2,any", "local,box2", "-x", "a;b"])
def test_an_invalid_placement_is_refused_with_its_node(words: str) -> None:
    with pytest.raises(UsageError, match="node a: "):
        parse_placement("node a", words)


@pytest.mark.parametrize(("attributes", "expected"), [
    ({}, "box2"), ({"hosts": "box3"}, "box3"), ({"host": "gpu"}, "gpu"), ({"host": "local"}, ""),
    ({"hosts": "box3", "host": "gpu"}, "box3")])
def test_the_placement_of_a_node_wins_over_that_of_the_launch(attributes: dict[str, str], expected: str) -> None:
    assert stated_placement(attributes, ["box2"]) == expected


@pytest.mark.parametrize(("placement", "queue", "hosts"), [
    ("box2", "host:box2", [BOX2]), ("gpu", "label:gpu", [BOX2]), ("any", "any", [BOX2, BOX3]),
    ("box2,box3", "set:box2+box3", [BOX2, BOX3])])
def test_a_placement_has_a_queue_and_its_eligible_hosts(placement: str, queue: str, hosts: list[Host]) -> None:
    assert queue_of(placement, [BOX2, BOX3]) == queue
    assert eligible(placement, [BOX2, BOX3]) == hosts
    assert check_placement("node a", placement, [BOX2, BOX3]) == hosts


@pytest.mark.parametrize(("placement", "hosts", "why"), [
    ("box4", [BOX2], "no host has the name or label box4"), ("any", [], "there is no host"),
    ("box2,box4", [BOX2], "there is no host box4"),
    ("box2", [replace(BOX2, state=HostState.DRAINING)], "takes no work now")])
def test_a_placement_without_a_host_is_refused(placement: str, hosts: list[Host], why: str) -> None:
    with pytest.raises(NotFound, match=f"node a: .*{why}"):
        check_placement("node a", placement, hosts)


def test_the_task_at_home_leaves_out_what_the_host_does() -> None:
    task = Task("r1", "work", 1, acceptance="true", setup="true", silence_s=1.0, timeout_s=2.0, hosts="box2",
                attributes={"validator": "claude", "model": "opus"})
    here = task.here
    assert (here.acceptance, here.setup, here.silence_s, here.timeout_s, here.attributes) == (
        None, None, None, None, {"model": "opus"})
    local = replace(task, hosts="")
    assert local.here is local


def test_agents_of_nodes_on_hosts_need_not_be_known_here() -> None:
    plan = plan_run(parse("""digraph crew { flow=dag; start [shape=Mdiamond]; exit [shape=Msquare];
        here [agent=claude, host=local]; there [agent=painter, failover=other];
        start -> here -> there -> exit }""", "g"))
    assert list(tasks_here(plan, ["box2"]).tasks) == ["here"]
    assert list(tasks_here(plan, []).tasks) == ["here", "there"]


def test_a_job_and_the_largest_progress_survive_encoding() -> None:
    assert decode(HostJob, encode(JOB, MAX_JOB), MAX_JOB) == JOB
    with pytest.raises(Refused, match="the limit of 1,000,000; shorten the task"):
        encode(replace(JOB, prompt="x" * MAX_JOB), MAX_JOB)
    most = JobProgress("for-1", "executing", "a" * 64, "\U0001f600" * MAX_LINE, "q", "\U0001f600" * MAX_QUESTION,
                       notes="\U0001f600" * MAX_NOTES)
    assert decode(JobProgress, encode(most, MAX_PROGRESS), MAX_PROGRESS) == most


@pytest.mark.parametrize(("kind", "text"), [*((JobProgress, text) for text in (
    "", "nonsense", "[]", '{"head": "x"}', '{"head": "../../x"}', '{"usd": "much"}', '{"usd": NaN}',
    '{"usd": Infinity}', '{"usd": -1}', '{"calls": 9999999999999}', '{"line": 3}',
    '{"line": "' + "x" * MAX_PROGRESS + '"}', "[" * 10_000)), *((JobResult, text) for text in (
        '{"host": "box2"}', '{"host": "box2", "status": "landed"}',
        '{"host": "box2", "status": "success", "head": "main"}', '{"host": "box2", "status": "fail", "said": []}'))])
def test_malformed_progress_and_results_are_ignored(kind: type[JobProgress | JobResult], text: str) -> None:
    assert decode(kind, text, MAX_PROGRESS if kind is JobProgress else MAX_RESULT) is None


def test_each_offer_has_its_own_run_on_the_host() -> None:
    names = {host_run(home, "r1", "work", attempt, offer)
             for home in ("a", "b") for attempt in (1, 2) for offer in (1, 2)}
    assert len(names) == 8
    assert all(check_run(name) for name in names)


def test_an_attempt_id_includes_the_number_of_its_offer() -> None:
    assert str(AttemptId("r1", "work", 2, 3)) == "r1/work/2.3"
    assert AttemptId.parse("r1/work/2.3") == AttemptId("r1", "work", 2, 3)
    for text in ("r1/work/2.", "r1/work/2.x", "r1/work/2.0", "r1/work/.3"):
        with pytest.raises(UsageError):
            AttemptId.parse(text)


@pytest.mark.parametrize("node", ["work", "start", "exit"])
def test_the_graph_on_the_host_can_be_planned(node: str) -> None:
    job = replace(JOB, node=node, prompt='Say "hi" \\ now\n\n## More', acceptance="make test", timeout_s=90.5,
                  silence_s=30.0, failover=["claude"], allow_empty=False, attributes={"model": "opus"})
    task = plan_run(parse(graph_of(job), "job")).tasks[node]
    assert (task.prompt, task.acceptance, task.timeout_s, task.silence_s, task.failover, task.allow_empty, task.agent) \
        == (job.prompt, "make test", 90.5, 30.0, "claude", False, "codex")
    assert task.attrs["model"] == "opus"
    assert plan_run(parse(graph_of(replace(job, words=["ship", "fix it"])), "job")).tasks[node].words == (
        "fix it", "ship")


def test_usage_that_is_reported_twice_or_late_counts_once(tmp_path: Path) -> None:
    for usd, calls, tokens in ((0.5, 2, 100), (0.5, 2, 100), (0.75, 3, 150), (0.25, 1, 50)):
        record_usage(tmp_path, "box2/1", JobProgress("for-1", usd=usd, calls=calls, input=tokens, output=10 * calls))
    record_usage(tmp_path, "box3/1", JobProgress("for-2", usd=1.0, calls=1, input=7))
    spent = costs.total(costs.read_usage(tmp_path / "remote" / "usage.jsonl"))
    assert (round(spent.usd, 9), spent.calls, spent.input, spent.output) == (1.75, 4, 157, 30)


@pytest.mark.parametrize(("state", "words"), [
    (RemoteWorkState(placement="box2,box3"), "waiting for a host (one of box2, box3)"),
    (RemoteWorkState(phase="working", host="box2", work="executing"), "its agent is working on box2"),
    (RemoteWorkState(phase="working", host="box2", work="\x1b[31m"), "its agent is working on box2"),
    (RemoteWorkState(phase="working", host="box2"), "preparing on box2"),
    (RemoteWorkState(phase="collecting", host="box2"), "done on box2; fetching its commits"),
    (RemoteWorkState(phase="working", host="box2", work="executing", trouble="cut"),
     "its agent is working on box2; cut"),
    (RemoteWorkState(phase="working", host="box2", work="executing", cancelled="stop"),
     "its agent is working on box2; ending it"),
    (RemoteWorkState(phase="ended", host="box2"), ""), (None, "")])
def test_remote_work_is_described(state: RemoteWorkState | None, words: str) -> None:
    assert describe_remote(state) == words


def test_a_host_that_is_cut_off_is_named() -> None:
    state = RemoteWorkState(placement="box2,box3")
    assert describe_remote(state, {"box2": " since 23:40 UTC", "box4": ""}) == (
        "waiting for a host (one of box2, box3); box2 is cut off since 23:40 UTC")


def row(pid: int, ppid: int, run: str = "", comm: str = "x", home: str = "/h") -> ProcessRow:
    return ProcessRow(pid, 100 + pid, ppid, comm, f"{home}:{run}:runner-a#1" if run else None, pid)


def test_the_processes_of_a_run_are_those_with_its_marker_and_their_descendants() -> None:
    rows = [row(2, 1), row(3, 2, "for-1"), row(4, 3), row(5, 4), row(6, 3, "for-2"), row(7, 6), row(8, 1, "for-1"),
            row(9, 3, "for-1", "tmux: server"), row(10, 9), row(11, 1, "for-1", home="/other"), row(12, 8, "for-1")]
    found = select_processes(rows, "/h", "for-1", caller=12)
    assert sorted(each.pid for each in found) == [3, 4, 5, 8]
    assert all(each == ProcessId(each.pid, 100 + each.pid) for each in found)


def test_the_guard_kills_what_has_started_and_not_ended() -> None:
    assert follow(["+for-1\n", "+for-2\n", "-for-1\n", "+for-3\n", "nonsense\n", "-for-9\n"]) == {"for-2", "for-3"}
