"""Timeline of a run: spans and marks from records, the estimate of the rest, costs over time, and how it is drawn."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as Tree

import pytest

from garrison.cli.main import main
from garrison.cli.render import text, width
from garrison.cli.timeline import BARS, COLOURS, render, to_svg
from garrison.records.costs import UsageRecord
from garrison.values import replace
from garrison.views import run_timeline
from garrison.views.event_log import EventLog
from garrison.views.run_timeline import Lane, RunTimeline, Span, SpanKind, TimelineModel, TimelineReader, payments
from garrison.views.usage import cost_rows
from timeline_support import BEGIN, TimedHome, story

EVIL = "<script>alert(1)</script>\x1b[31m\x07&"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the home of the story's run, to be read only."""
    path = tmp_path_factory.mktemp("home")
    story(TimedHome(path))
    return path


@pytest.fixture(scope="module")
def made(home: Path) -> RunTimeline:
    return TimelineReader(home, "story-1").read()


def told(lane: Lane) -> list[str]:
    """Return spans and marks of a node in order, with minutes since the start."""
    spans = [(each.begin, 0, f"{each.kind} {(each.begin - BEGIN) / 60:g}-{((each.end or 0) - BEGIN) / 60:g}")
             for each in lane.spans]
    marks = [(each.at, 1, f"*{each.kind} {(each.at - BEGIN) / 60:g}") for each in lane.marks]
    return [words for _, _, words in sorted(spans + marks)]


def test_the_spans_of_a_node_are_its_work_and_waits_and_never_overlap(made: RunTimeline) -> None:
    lanes = {lane.node: lane for lane in made.lanes}
    assert told(lanes["parse"]) == [
        "starting 0-1", "working 1-6", "restarting 6-7", "*died 6", "working 7-11", "checking 11-12", "queued 12-13",
        "testing 13-15", "*landed 15"]
    assert told(lanes["docs"]) == [
        "ready 0-12", "starting 12-13", "working 13-16", "asks 16-20", "working 20-22", "*answered 20", "limit 22-25",
        "working 25-28", "testing 28-30", "starting 30-31", "*rejected 30", "*retry 30", "working 31-34",
        "testing 34-36", "*landed 36"]
    assert told(lanes["tests"]) == [
        "ready 15-36", "starting 36-37", "working 37-42", "parked 42-44", "working 44-46", "queued 46-47",
        "testing 47-49", "*landed 49"]
    assert told(lanes["release"]) == []
    assert [span.attempt for span in lanes["docs"].spans][-3:] == [2, 2, 2]
    for lane in made.lanes:
        for before, after in zip(lane.spans, lane.spans[1:], strict=False):
            assert before.end <= after.begin


def test_the_timeline_of_a_dead_run_ends_with_its_last_record(made: RunTimeline) -> None:
    assert (made.status, made.is_over, made.end - made.begin) == ("interrupted", True, 50 * 60)
    queue = made.queue
    assert (queue.landed, len(queue.gates), queue.red, queue.gate_s, queue.wait_s) == (3, 4, 1, 120, 180)
    assert queue.per_hour == pytest.approx(3 * 60 / 37)
    assert made.estimate == run_timeline.RestEstimate(2 * 15 * 60, 2, 3), "release, then notes: a median of 15 minutes"
    pending = [lane for lane in made.lanes if lane.status == "pending"]
    assert run_timeline.estimate_rest(pending, {}, 1, made.end) is None


def test_a_span_in_progress_has_no_end_and_counts_until_now(tmp_path: Path) -> None:
    told_run = story(TimedHome(tmp_path))
    told_run.node(52, "release", "active", step="release#1:1")
    told_run.agent("release", 53)
    reader = TimelineReader(tmp_path, "story-1")
    reader.read()
    model, now = TimelineModel("story-1"), BEGIN + 60 * 60
    for record in EventLog(tmp_path, "story-1").records():
        model.apply(record)
    made = model.timeline(now, "running", alive=True, predecessors={}, agents=1)
    release = next(lane for lane in made.lanes if lane.node == "release")
    ask = next(lane for lane in made.lanes if lane.node == "ask")
    assert [(span.kind, span.end) for span in release.spans] == [(SpanKind.STARTING, BEGIN + 53 * 60),
                                                                (SpanKind.WORKING, None)]
    assert release.seconds[SpanKind.WORKING] == 7 * 60
    assert [(span.kind, span.begin, span.end) for span in ask.spans] == [(SpanKind.ASKS, BEGIN + 50 * 60, None)]
    told_run.guardian(61, "run", status="stopped", reason="stopped by a person")
    after = reader.read()
    release = next(lane for lane in after.lanes if lane.node == "release")
    assert (release.spans[-1].kind, release.spans[-1].end) == (SpanKind.WORKING, BEGIN + 61 * 60), "read on"


def test_the_estimate_follows_dependencies_and_the_number_of_agents() -> None:
    rest = {"a": 10.0, "b": 10.0, "c": 5.0}
    for tasks, predecessors, agents, seconds in ((rest, {}, 3, 10), (rest, {}, 1, 25), ({}, {}, 1, 0),
                                                 (rest, {"c": ["a"], "b": ["c"]}, 3, 25),
                                                 (rest, {"a": ["b"], "b": ["a"]}, 3, 5)):  # a loop is left out
        assert run_timeline.simulate(tasks, predecessors, agents) == seconds


def test_a_wait_for_a_limit_replaces_the_work_it_interrupted() -> None:
    work = [Span(SpanKind.WORKING, 0, 10), Span(SpanKind.TESTING, 10, 20)]
    endings = [{"kind": "rate_limit", "at": 4, "reason": "limit"}, {"kind": "reported", "at": 9}]
    waits = run_timeline.limit_spans(endings, [{"at": 0}, {"at": 6}])
    assert [(span.kind, span.begin, span.end) for span in run_timeline.overlaid(work, waits)] == [
        ("working", 0, 4), ("limit", 4, 6), ("working", 6, 10), ("testing", 10, 20)]
    waits = run_timeline.limit_spans([{"kind": "billing", "at": 4}], [{"at": 0}])
    lasting = run_timeline.overlaid([Span(SpanKind.WORKING, 0, None)], waits)
    assert [(span.kind, span.end) for span in lasting] == [("working", 4), ("limit", None)]


def test_costs_over_time_add_up_to_those_of_the_cost_command(home: Path, made: RunTimeline) -> None:
    series = made.costs
    assert series.usd == pytest.approx(sum(row.usd for row in cost_rows(home, "story-1", "node")))
    assert {name: sums[-1] for name, sums in (series.nodes or {}).items()} == {
        "parse": 2.0, "tests": 0.75, "docs": 0.25}
    assert list(series.models or {}) == ["claude-sonnet-4", "claude-haiku-4"]
    for sums in [*(series.nodes or {}).values(), *(series.models or {}).values()]:
        assert list(sums) == sorted(sums), "never less than before"


def test_a_bill_is_divided_among_its_calls_and_many_nodes_are_summed() -> None:
    at = "2026-03-01T12:0{}:00.000000Z"
    result = UsageRecord("result", "s", at.format(3), 2.0)
    records = [UsageRecord("call", "s", at.format(1), 1.0, "m1", "a"),
               UsageRecord("call", "s", at.format(2), 3.0, "m2", "b"), result]
    assert [(each.model, each.usd) for each in payments("n", records)] == [("m1", 0.5), ("m2", 1.5)]
    assert run_timeline.cost_series([], 0, 1).usd == 0
    alone = payments("n", [result])
    assert [(each.model, each.usd) for each in alone] == [("unknown", 2.0)]
    paid = [each for number in range(20) for each in payments(f"n{number}", [
        UsageRecord("call", f"s{number}", "2026-03-01T12:01:00.000000Z", 1.0 + number, "m", "a")])]
    series = run_timeline.cost_series(paid, BEGIN, BEGIN + 600)
    assert len(series.nodes or {}) == 13
    assert sum(sums[-1] for sums in (series.nodes or {}).values()) == pytest.approx(series.usd)


def test_every_kind_of_span_has_a_character_and_a_colour() -> None:
    assert set(BARS) == set(COLOURS) == set(SpanKind)
    assert len({character for character, _ in BARS.values()}) == len(BARS), "not by colour alone"
    static = Path(__file__).parents[2] / "src/garrison/web/static"
    for kind in SpanKind:
        name = f'"{kind}"' if " " in kind else kind
        assert f"  {name}: [" in (static / "gantt.js").read_text(), kind
        assert f".k-{kind.name.lower()} {{" in (static / "gantt.css").read_text(), kind


def test_bars_fit_the_terminal(made: RunTimeline) -> None:
    evil = replace(made, lanes=[*made.lanes, Lane(f"{EVIL}{'n' * 50}", "active", [
        Span(SpanKind.WORKING, made.begin, None, 1, EVIL)], [])])
    for columns in (20, 36, 60, 80, 100, 160, 220):
        for each in (made, evil, replace(made, lanes=[]), replace(made, begin=made.end)):
            lines = render(replace(each, problems=[EVIL]), columns)
            assert all(width(line) <= columns for line in lines)
            said = text(lines, colours=False)
            assert "\x1b" not in said
            assert "\x07" not in said


def test_the_picture_is_xml_and_escapes_names(made: RunTimeline) -> None:
    evil = replace(made, lanes=[*made.lanes, Lane(EVIL, "active", [Span(SpanKind.WORKING, made.begin, None, 1, EVIL)],
                                                  [])])
    root = Tree.fromstring(to_svg(evil))
    assert {each.tag.rpartition("}")[2] for each in root.iter()} <= {"svg", "title", "style", "rect", "text", "line",
                                                                     "polyline"}
    assert sum(1 for each in root.iter() if (each.get("class") or "").startswith("k-working")) >= 5
    assert any("<script>" in (each.text or "") for each in root.iter()), "as text"


def test_a_run_without_records_has_an_empty_timeline() -> None:
    made = TimelineModel("r1").timeline(5.0, "new", alive=False, predecessors={})
    assert (made.begin, made.end, made.lanes) == (5.0, 5.0, [])


def test_the_command_prints_text_json_and_svg(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--home", str(home), "timeline"]) == 0
    assert "run story-1: interrupted, 50 min, about 30 min left for 2 nodes" in capsys.readouterr().out
    picture = tmp_path / "t.svg"
    assert main(["--home", str(home), "timeline", "story-1", "--svg", str(picture), "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["estimate"] == {"seconds": 1800.0, "nodes": 2, "sample": 3}
    assert body["duration_s"] == 3000.0
    assert Tree.fromstring(picture.read_text()).tag.endswith("svg")
    assert main(["--home", str(home), "timeline", "other"]) != 0
    assert "no run other" in capsys.readouterr().err
    assert main(["--home", str(home), "timeline", "--svg", str(tmp_path / "no/t.svg")]) != 0
    assert "cannot write" in capsys.readouterr().err
