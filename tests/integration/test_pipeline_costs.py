"""What agents of `garrison pipeline run` cost: counted by the proxy, bounded by their budgets, out of their reach."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from garrison.cli.main import garrison
from garrison.directories import find_home
from garrison.records import costs
from proxy_support import Web, plain
from support import UserWorld

ANSWER = json.dumps({"type": "message", "id": "m1", "model": "claude-haiku-4",
                     "usage": {"input_tokens": 1_000_000, "output_tokens": 0}}).encode()
ASK = "curl -s -o /dev/null -w '%{http_code} ' -H \\\"x-api-key: $ANTHROPIC_API_KEY\\\" -d '{}' " \
      "$ANTHROPIC_BASE_URL/v1/messages"
GRAPH = f"""digraph Two {{ start [shape=Mdiamond]; x [shape=Msquare];
    a [prompt="p", agent=caller, command="{ASK} >> {{log}}; {ASK} >> {{log}}"]
    b [prompt="p", agent=caller, command="{ASK} >> {{log}}"]
    start -> a -> b -> x }}"""
SPENDS = 1.0
"""US dollars of one answer."""


@pytest.fixture
def run(user: UserWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Result:
    def start(profile: str) -> list[str]:
        log, file = user.root / "log", tmp_path / "two.dot"
        user.configure(
            f'[agents.caller]\nargv = ["sh", "-c", "{{command}}"]\nnetwork = "allow"\nhosts = []\n{profile}\n')
        file.write_text(GRAPH.replace("{log}", str(log)))
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-real")
        monkeypatch.chdir(tmp_path)
        with Web(plain(ANSWER)) as api:
            monkeypatch.setenv("ANTHROPIC_BASE_URL", api.url)
            done = CliRunner().invoke(garrison, ["pipeline", "run", str(file)])
        assert done.exit_code == 0, done.output
        return log.read_text().split()
    return start


def test_the_budgets_of_a_node_and_of_a_run_are_kept_in_records_out_of_the_agents_reach(run) -> None:
    assert run("budget = 0.5\nbudget_run = 1.5") == ["200", "402", "200"]
    home = find_home()
    found = {(run, node): costs.total(costs.read_usage(path)).usd for run, node, path in costs.usage_files(home)}
    name = next((home / "pipelines").iterdir()).name
    assert found == {(f"pipelines/{name}", "a"): SPENDS, (f"pipelines/{name}", "b"): SPENDS}
    shown = CliRunner().invoke(garrison, ["cost", f"pipelines/{name}", "--json"])
    assert [(row["of"], row["usd"], row["limit"]) for row in json.loads(shown.output)] == [
        (f"pipelines/{name}/a", SPENDS, 0.5), (f"pipelines/{name}/b", SPENDS, 0.5)]
    assert not list((home / "pipelines").glob("**/usage.jsonl"))
    assert not list((home / "pipelines").glob("**/proxy.*"))


def test_the_budget_of_a_run_counts_all_its_nodes(run) -> None:
    assert run("budget_run = 2") == ["200", "200", "402"]
