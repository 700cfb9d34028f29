"""Costs: what each call cost, and what the page shows: dollars and tokens of a run and its nodes, limits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from garrison.agents.conversation.files import AttemptFiles
from garrison.agents.session_options import ORDER
from garrison.records import costs
from garrison.records.budget import Limits, Meter
from garrison.records.costs import UsageRecord
from garrison.records.run import RunFiles
from garrison.sandbox.proxy.ledger import Ledger
from garrison.sandbox.proxy.registration import Registration
from garrison.sandbox.proxy.token_counts import CallCounts
from garrison.values import replace
from garrison.views import usage
from garrison.views.usage import ShownCosts, ShownLimits, Tokens

DAY = "2026-01-31"


def respond(home: Path, run: str, node: str, tokens: int, attempt: int = 1) -> AttemptFiles:
    """Record a response of a node's session; return the session's files."""
    files = AttemptFiles(RunFiles(home, run).attempt(node, attempt))
    files.folder.mkdir(parents=True, exist_ok=True)
    costs.append_usage(files.usage, costs.call_record(f"{node}{attempt}", f"{DAY}T10:00:00Z", f"m{tokens}", "haiku",
                                           {"input_tokens": tokens, "output_tokens": 10}))
    return files


def test_dollars_tokens_and_limits_of_a_run(tmp_path: Path) -> None:
    first = respond(tmp_path, "r1", "a", 1_000_000)
    first.order.write_text(json.dumps({"settings": {"budget": 2.0, "budget_run": 9.0}}))
    again = respond(tmp_path, "r1", "a", 100, attempt=2)
    again.order.write_text(json.dumps({"settings": {"budget": 3.0, "budget_day": 20, "budget_run": None}}))
    spoken = respond(tmp_path, "r1", "b", 200)
    (spoken.folder.parent / ORDER).write_text(json.dumps({"settings": {"budget_run": 5.0}}))
    respond(tmp_path, "r2", "a", 1_000_000)
    reader = usage.CostReader(tmp_path, interval=0.0)
    found = reader.read(DAY).of_run("r1").shown()
    assert found.tokens == Tokens((1_000_300, 30), {"a": (1_000_100, 20), "b": (200, 10)})
    assert found.limits == ShownLimits(5.0, 20, {"a": 3.0})
    assert (found.usd, found.today) == (pytest.approx(1.0005, abs=1e-4), pytest.approx(2.0005, abs=1e-3))
    again.order.write_text(json.dumps({"settings": {"budget": 4.0}}))  # it was raised, and the session asked again
    respond(tmp_path, "r1", "a", 300, attempt=2)
    assert reader.read(DAY).of_run("r1").shown().limits == ShownLimits(5.0, None, {"a": 4.0})
    assert reader.read(DAY).of_run("r3").shown() == ShownCosts(
        None, {}, Tokens((0, 0), {}), ShownLimits(None, None, {}), None, "")


def test_what_the_proxy_counts_has_its_own_limits_and_replaces_none_of_a_session(tmp_path: Path) -> None:
    respond(tmp_path, "r1", "a", 100).order.write_text(json.dumps({"settings": {"budget": 2.0}}))
    for node, limits, reporter in (("a", Limits(node=2.0), "claude-cli/"), ("b", Limits(node=3.0), "")):
        folder = RunFiles(tmp_path, "r1").attempt(node, 1) / "network"
        ledger = Ledger(tmp_path, Registration("r1", node, 1, str(folder), limits=limits, reported_by=reporter))
        number, _ = ledger.open_call()
        counts = CallCounts("haiku", "m100", {"input_tokens": 100, "output_tokens": 10})
        ledger.close_call(number, counts, "claude-cli/2")
    found = usage.CostReader(tmp_path).read(DAY).of_run("r1").shown()
    assert found.tokens == Tokens((200, 20), {"a": (100, 10), "b": (100, 10)})
    assert found.limits == ShownLimits(None, None, {"a": 2.0, "b": 3.0})
    assert {row.of: row.limit for row in usage.cost_rows(tmp_path, "r1", "node")} == {"r1/a": 2.0, "r1/b": 3.0}
    rows = usage.cost_rows(tmp_path, "r1", "model")
    assert [(row.of, row.calls, row.input) for row in rows] == [("haiku", 2, 200)]


def test_a_subscription_has_windows_in_place_of_dollars_and_all_views_show_the_same_sum(tmp_path: Path) -> None:
    """The latest state of each window counts, whichever attempt reported it."""
    first, second = (tmp_path / f"runs/r1/nodes/a/{attempt}/claude" for attempt in (1, 2))
    for folder, used in ((second, 0.1), (first, 0.62)):
        folder.mkdir(parents=True)
        costs.append_usage(folder / "usage.jsonl", costs.call_record("s", costs.now(), "m", "haiku", {
            "output_tokens": 100_000}))
        if folder == second:
            assert usage.describe_cost(tmp_path, "r1", costs.UsageCache()) == (pytest.approx(0.5), "$0.50 so far")
        costs.note_window(folder, "five_hour", used, 4e9, "allowed")
        costs.note_window(folder, "overage", 1.0, None, "allowed")
    costs.note_window(first, "seven_day", None, None, "rejected")
    usd, words = usage.describe_cost(tmp_path, "r1", costs.UsageCache())
    assert words == "by subscription, 5 h: 62 % used until Tue 02 07:06 UTC, week: used up"
    of_run = usage.CostReader(tmp_path).read("2026-01-01").of_run("r1")
    assert usd == of_run.usd == sum(row.usd for row in usage.cost_rows(tmp_path, "r1", "node")) == pytest.approx(1.0)
    assert f"by subscription, {of_run.shown().windows}" == words
    assert usage.describe_cost(tmp_path, "r2", costs.UsageCache()) == (None, "")


def test_an_invalid_job_sets_no_limits() -> None:
    for order in (None, [], {}, {"settings": None}, {"settings": {"budget": "much"}}):
        assert usage.limits_of(order) == Limits()


# ---- records of calls: the CLI's word, else an estimate, and never counted twice


def call(message: str, usd: float, session: str = "s", at: str = "2026-01-02T00:00:00Z") -> UsageRecord:
    return UsageRecord("call", session, at, usd, "m", message, 10, 5)


def result(usd: float, session: str = "s", at: str = "2026-01-02T00:00:00Z") -> UsageRecord:
    return UsageRecord("result", session, at, usd)


@pytest.mark.parametrize(("model", "usd"), [
    ("claude-opus-4-5-20251101", 5.0), ("claude-opus-5", 5.0), ("opus", 5.0), ("claude-opus-5-5", 4.0),
    ("us.anthropic.claude-opus-4-6-v1:0", 5.0), ("claude-opus-5-9", 15.0), ("claude-opus-7-20280101", 15.0),
    ("claude-haiku-5-5", 0.5), ("claude-haiku-9", 1.0), ("claude-3-5-haiku-20241022", 0.8), ("sonnet[1m]", 3.0),
    ("claude-sonnet-5-5[1m]", 2.0), ("claude-fable-5-2", 8.0), ("claude-fable-9", 10.0), ("gpt-9", 10.0),
    ("gpt-5.1-codex-mini", 0.25), ("gpt-5-2025-08-07", 1.25), ("openai/gpt-4o-2024-11-20", 2.5), ("gpt-4", 10.0),
    ("gpt-6.1-sol", 4.0), ("o4-mini", 1.1), ("o3", 2.0), ("models/gemini-2.5-flash-lite", 0.1), ("gemini-9-pro", 4.0),
    ("claude-sonnet-9", 3.0), ("gpt-oss-120b", 15.0), ("mistral-large", 15.0), ("foo3", 15.0),
    ("claude-opus-4-1-20250805", 15.0), ("claude-opus-4-20250514", 15.0), ("claude-opus-4@20250514", 15.0),
    ("claude-opus-4-0", 15.0), ("claude-3-opus-20240229", 15.0), ("something new", 15.0),
])
def test_each_version_has_its_own_price_and_an_unknown_one_the_dearest_of_its_family(model: str, usd: float) -> None:
    assert costs.estimate(model, {"input_tokens": 1_000_000}) == pytest.approx(usd)


def test_output_costs_more_than_input_and_what_is_cached_for_an_hour_more_than_for_minutes() -> None:
    assert costs.estimate("claude-haiku-4", {"input_tokens": 1_000_000, "output_tokens": 100_000}) == pytest.approx(1.5)
    assert costs.estimate("claude-haiku-4", {"cache_read_input_tokens": 1_000_000}) == pytest.approx(0.1)
    written = {"cache_creation_input_tokens": 1_000_000}
    assert costs.estimate("claude-haiku-4", written) == pytest.approx(1.25)
    for more in ({"ephemeral_1h_input_tokens": 400_000}, {"cache_creation": {"ephemeral_1h_input_tokens": 400_000}}):
        assert costs.estimate("claude-haiku-4", {**written, **more}) == pytest.approx(0.6 * 1.25 + 0.4 * 2)


@pytest.mark.parametrize("count", [None, -5, "many", [1], float("nan"), float("inf"), {}])
def test_invalid_token_counts_cost_nothing_and_refund_nothing(count):
    told = {"input_tokens": count, "output_tokens": 100_000, "cache_read_input_tokens": count}
    assert costs.estimate("claude-haiku-4", told) == pytest.approx(0.5)
    made = costs.call_record("s", "now", "m", "claude-haiku-4", told)
    assert (made.input, made.output, made.cache_read) == (0, 100_000, 0)


def test_a_response_billed_twice_counts_once_and_the_clis_total_wins_over_resumes_of_one_session():
    assert costs.total([call("a", 1.0), call("a", 2.0)]).usd == 2.0, "the later line knows more"
    told = costs.total([call("a", 9.0), result(0.5), call("b", 0.25)])
    assert told.usd == 0.75, "what the CLI has billed, and what came after"
    assert (told.calls, told.input, told.output) == (2, 20, 10)
    assert costs.total([result(1.0), call("b", 5.0), result(1.5)]).usd == 1.5
    assert costs.total([result(1.0), result(2.0, session="other")]).usd == 3.0


def on(connection: str, *lines: UsageRecord) -> list[UsageRecord]:
    return [replace(one, connection=connection) for one in lines]


def test_calls_that_a_killed_cli_had_not_reported_stay_on_the_bill():
    """The next connection inherits its total only if it could end gracefully; a kill loses the rest."""
    killed = [*on("1", call("a", 1.0), result(1.0), call("b", 2.0)), *on("2", call("c", 0.5), result(1.5))]
    assert costs.total(killed).usd == 3.5
    stopped = [*on("1", call("a", 1.0), result(1.0), call("b", 2.0)), *on("2", call("c", 0.5), result(3.5))]
    assert costs.total(stopped).usd == 3.5
    twice = [*on("1", call("a", 1.0)), *on("2", call("b", 1.0)), *on("3", call("c", 1.0), result(1.0))]
    assert costs.total(twice).usd == 3.0
    assert costs.total(twice[:2]).usd == 2.0


def test_the_total_of_a_day():
    calls = [result(1.0, at="2026-01-01T23:00:00Z"), call("b", 0.5), result(1.25), call("c", 0.5, at="2026-01-03T01Z")]
    assert costs.total_of_day(calls, "2026-01-01") == 1.0
    assert costs.total_of_day(calls, "2026-01-02") == 0.25
    assert costs.total_of_day(calls, "2026-01-03") == 0.5


def test_a_torn_line_is_skipped_and_the_next_one_counts(tmp_path):
    path = tmp_path / "usage.jsonl"
    costs.append_usage(path, call("a", 1.0))
    assert set(json.loads(path.read_text())) == {"kind", "session", "at", "usd", "model", "message", "input", "output",
                                                 "cache_read", "cache_write", "stretch"}, "the keys of version 0.1"
    with path.open("a") as file:
        file.write('{"kind": "ca')
    assert costs.total(costs.read_usage(path)).usd == 1.0
    costs.append_usage(path, call("b", 2.0))
    assert costs.total(costs.read_usage(path)).usd == 3.0, "the next line starts after it"


@pytest.mark.parametrize(("limits", "which"), [
    (Limits(node=1.0), "node"), (Limits(run=2.0), "run"), (Limits(day=3.0), "day")])
def test_each_limit_counts_its_own_sessions(tmp_path, limits, which):
    """Another attempt counts for the node, another node for the run, another run for the day."""
    for run, node, attempt in (("r1", "a", 1), ("r1", "a", 2), ("r1", "b", 1), ("r2", "a", 1)):
        folder = tmp_path / "runs" / run / "nodes" / node / str(attempt) / "claude"
        folder.mkdir(parents=True)
        costs.append_usage(folder / "usage.jsonl", call("m", 0.5 if run == "r1" else 1.0))
    meter = Meter(tmp_path, "r1", "a", limits)
    path = tmp_path / "runs/r1/nodes/a/2/claude/usage.jsonl"
    over = meter.exceeded("2026-01-02")
    assert bool(over) == (which == "node"), over
    costs.append_usage(path, call("n", 0.5))
    assert meter.exceeded("2026-01-02"), "a file that grew is read again"
    assert which in meter.exceeded("2026-01-02")
    assert Meter(tmp_path / "absent", "r1", "a", Limits()).exceeded("2026-01-02") == "", "without a limit none is read"
