"""What sessions cost: by the CLI's word where there is one, else by estimate, and never counted twice."""

from __future__ import annotations

import json

import pytest

from garrison.records import costs
from garrison.records.budget import Limits, Meter
from garrison.records.costs import UsageRecord
from garrison.values import replace


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


def test_a_response_billed_twice_counts_once_and_the_clis_total_wins():
    assert costs.total([call("a", 1.0), call("a", 2.0)]).usd == 2.0, "the later line knows more"
    told = costs.total([call("a", 9.0), result(0.5), call("b", 0.25)])
    assert told.usd == 0.75, "what the CLI has billed, and what came after"
    assert (told.calls, told.input, told.output) == (2, 20, 10)


def test_the_clis_total_counts_over_resumes_and_not_over_sessions():
    assert costs.total([result(1.0), call("b", 5.0), result(1.5)]).usd == 1.5
    assert costs.total([result(1.0), result(2.0, session="other")]).usd == 3.0


def of(stretch: str, *lines: UsageRecord) -> list[UsageRecord]:
    return [replace(one, connection=stretch) for one in lines]


def test_calls_that_a_killed_cli_had_not_reported_stay_on_the_bill():
    """Its total is inherited by the next stretch only if it could end in order; a kill takes the rest with it."""
    killed = [*of("1", call("a", 1.0), result(1.0), call("b", 2.0)), *of("2", call("c", 0.5), result(1.5))]
    assert costs.total(killed).usd == 3.5
    stopped = [*of("1", call("a", 1.0), result(1.0), call("b", 2.0)), *of("2", call("c", 0.5), result(3.5))]
    assert costs.total(stopped).usd == 3.5
    twice = [*of("1", call("a", 1.0)), *of("2", call("b", 1.0)), *of("3", call("c", 1.0), result(1.0))]
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
    assert costs.total(costs.read_usage(path)).usd == 3.0, "a successor's line begins anew"


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
