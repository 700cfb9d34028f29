"""Costs as the page shows them: dollars and tokens of a run and its nodes, limits of its sessions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from garrison.agents.conversation.files import AttemptFiles
from garrison.agents.session_options import ORDER
from garrison.records import costs
from garrison.records.budget import Limits
from garrison.records.run import RunFiles
from garrison.sandbox.proxy.ledger import Ledger
from garrison.sandbox.proxy.registration import Registration
from garrison.sandbox.proxy.token_counts import CallCounts
from garrison.views import usage
from garrison.views.usage import ShownCosts, ShownLimits, Tokens

DAY = "2026-01-31"


def call(home: Path, run: str, node: str, tokens: int, attempt: int = 1) -> AttemptFiles:
    """An answer of a node's session; where its files are."""
    files = AttemptFiles(RunFiles(home, run).attempt(node, attempt))
    files.folder.mkdir(parents=True, exist_ok=True)
    costs.append_usage(files.usage, costs.call_record(f"{node}{attempt}", f"{DAY}T10:00:00Z", f"m{tokens}", "haiku",
                                           {"input_tokens": tokens, "output_tokens": 10}))
    return files


def test_dollars_tokens_and_limits_of_a_run(tmp_path: Path) -> None:
    call(tmp_path, "r1", "a", 1_000_000).order.write_text(json.dumps({"settings": {"budget": 2.0, "budget_run": 9.0}}))
    again = call(tmp_path, "r1", "a", 100, attempt=2)
    again.order.write_text(json.dumps({"settings": {"budget": 3.0, "budget_day": 20, "budget_run": None}}))
    spoken = call(tmp_path, "r1", "b", 200)
    (spoken.folder.parent / ORDER).write_text(json.dumps({"settings": {"budget_run": 5.0}}))
    call(tmp_path, "r2", "a", 1_000_000)
    reader = usage.CostReader(tmp_path, interval=0.0)
    found = reader.read(DAY).of_run("r1").shown()
    assert found.tokens == Tokens((1_000_300, 30), {"a": (1_000_100, 20), "b": (200, 10)})
    assert found.limits == ShownLimits(5.0, 20, {"a": 3.0})
    assert (found.usd, found.today) == (pytest.approx(1.0005, abs=1e-4), pytest.approx(2.0005, abs=1e-3))
    again.order.write_text(json.dumps({"settings": {"budget": 4.0}}))  # it was raised, and the session asked again
    call(tmp_path, "r1", "a", 300, attempt=2)
    assert reader.read(DAY).of_run("r1").shown().limits == ShownLimits(5.0, None, {"a": 4.0})
    assert reader.read(DAY).of_run("r3").shown() == ShownCosts(
        None, {}, Tokens((0, 0), {}), ShownLimits(None, None, {}), None, "")


def test_what_the_proxy_counts_has_its_own_limits_and_takes_none_of_a_session_s(tmp_path: Path) -> None:
    call(tmp_path, "r1", "a", 100).order.write_text(json.dumps({"settings": {"budget": 2.0}}))
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


def test_a_subscription_has_windows_in_place_of_dollars_and_all_show_one_sum(tmp_path: Path) -> None:
    """The last word about each window counts, whichever attempt heard it."""
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
