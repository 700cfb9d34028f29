"""The real Claude CLI and the real Codex with default settings in repositories with a set-up and a scripted model.

Their worlds have a separate network: the model's loopback port, and the registries through a team's proxy.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

import pytest

from garrison.testing.model_server import ModelServer
from garrison.testing.request import Request
from garrison.testing.turn import Block, Turn, say, use
from projects import PROJECTS, Project
from real_agents import AGENTS, report
from support import git, load
from test_projects import make_checkout
from toolchains import Missing, registry
from world import COLUMNS, HOME, RegistryDoor, World, Worlds, door_to, in_column


class Crew(NamedTuple):
    """An agent by its name, and the entry of the agents' table for its model's tool calls."""

    agent: str
    like: str
    tools: tuple[str, ...] = ()
    reports: bool = True
    """Whether it has a tool to report with."""


CLAUDE = Crew("claude", "claude-acp")
CODEX = Crew("codex", "codex", ("npm", "codex", "codex-acp"))
CODEX_EXEC = Crew("codex-exec", "codex", ("npm", "codex"), reports=False)
ROWS = [*((CLAUDE, name, "default") for name in ("npm", "uv", "pip")),
        *((crew, name, "default") for crew in (CODEX, CODEX_EXEC) for name in ("uv", "npm", "plain-python")),
        *((crew, "npm", "user") for crew in (CLAUDE, CODEX)),
        *((crew, "plain-python", column) for crew in (CLAUDE, CODEX) for column in COLUMNS)]
"""Crew, project, and column; the first two run with `--full`."""
VALIDATED = "npm"
"""Project with a validator, as a user writes it into a pipeline."""
PIPELINE = """digraph crew {{
    start [shape=Mdiamond]; exit [shape=Msquare]
    start -> work -> exit
    work [shape=box, agent={agent}, validator={agent}, prompt="Add the dependency.", acceptance="{acceptance}"]
}}
"""
DATED = """digraph crew { flow=dag; goal="g"; start [shape=Mdiamond]; exit [shape=Msquare];
  made [shape=box, command="date > made.txt"]; start -> made -> exit; }"""
VERDICT = {"verdict": "pass", "reason": "it is there",
           "criteria": [{"criterion": "the dependency is added", "met": True, "evidence": "git show"}]}


def agents_world(worlds: Worlds, crew: Crew, model: ModelServer, *tools: str, kinds: tuple[str, ...] = (),
                 column: str = "default") -> World:
    """Make a world where the agent's model and these registries can be reached, and nothing else."""
    try:
        names = [name for kind in kinds for name in registry(kind).names]
    except Missing as missing:
        pytest.skip(str(missing))
    home = in_column(column, worlds, *dict.fromkeys((*crew.tools, *tools)),
                     doors=(door_to(model.port), RegistryDoor(names)))
    url = f"http://127.0.0.1:{home.ports[0]}"
    home.env |= {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "sk-ant-fake-0000"} if crew is CLAUDE else {
        "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "sk-fake-0000"}
    if kinds:
        home.env["HTTPS_PROXY"] = f"http://127.0.0.1:{home.ports[1]}"
    return home


def play(crew: Crew, shell: str) -> ModelServer:
    """Return a model that does a task with a shell, commits and reports; as a validator it passes the work."""
    agent = AGENTS[crew.like]

    def script(asked: Request) -> Turn:
        if "report_verdict" in str(asked):
            steps = [say("I look.", agent.run("git log -1 --stat")), say(judge(asked)), say("done")]
        elif agent.tool in asked.tools:
            done = agent.run(f"set -e; {shell}; git add -A; git commit -qm 'Do the task'")
            steps = [say("I do it.", done), *([say(report(agent, asked))] if crew.reports else []), say("done")]
        else:
            return say("A title")
        return steps[min(asked.step, len(steps) - 1)]

    return ModelServer(script)


def judge(asked: Request) -> Block:
    """Return how a model passes work: Codex's model calls tools from JavaScript."""
    name = next((name for name in asked.tools if name.endswith("report_verdict")), None)
    if name is None:
        return use("exec", text=f"text(await tools.mcp__garrison__report_verdict({json.dumps(VERDICT)}))")
    return use(name, **VERDICT)


@pytest.mark.parametrize(("crew", "name", "column"), [
    pytest.param(*row, id="-".join((row[0].agent, *row[1:])),
                 marks=() if row in ROWS[:2] else pytest.mark.slow) for row in ROWS])
def test_an_agent_adds_a_dependency_with_the_projects_own_tool(crew: Crew, name: str, column: str,
                                                               worlds: Worlds) -> None:
    [project] = [each for each in PROJECTS if each.name == name]
    model = play(crew, project.task)
    home = agents_world(worlds, crew, model, *project.tools, kinds=project.registry, column=column)
    land(project, crew, home)
    model.close()


def land(project: Project, crew: Crew, home: World) -> None:
    """Prepare the repository with `init`, and type the task."""
    checkout = make_checkout(project, home)
    begun = home.run(checkout, "garrison", "init")
    assert begun.returncode == 0, f"{begun.stdout}\n{begun.stderr}\n{home.logs()}"
    home.shell(checkout, "git add garrison.toml first.dot; git commit -qm 'Add garrison'")
    if project.name == VALIDATED and crew.reports:
        acceptance = project.acceptance.replace('"', '\\"')
        home.outside(f"{checkout}/crew.dot").write_text(PIPELINE.format(agent=crew.agent, acceptance=acceptance))
        home.own()
        home.shell(checkout, "git add crew.dot; git commit -qm 'Add a crew'")
        run_and_look(project, home, checkout, "launch", "crew.dot")
        [report_file] = home.state.glob("runs/*/nodes/work/1/validator/claude/report.json")
        assert (load(report_file)["status"], load(report_file)["criteria"]) == ("success", VERDICT["criteria"])
    else:
        run_and_look(project, home, checkout, "run", "add the dependency", "--agent", crew.agent)


def run_and_look(project: Project, home: World, checkout: str, *words: str) -> None:
    """Run a command of one task to its end; check its exit code, its last line and git."""
    done = home.run(checkout, "garrison", *words)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{home.logs()}"
    assert "1 of 1 landed" in done.stdout.strip().splitlines()[-1], done.stdout + done.stderr
    for path, text in project.landed.items():
        assert text in home.shell(checkout, f"git show main:{path}")
    assert home.shell(checkout, "git status --porcelain") == ""


def test_an_agent_says_hi_after_a_setup_option(worlds: Worlds) -> None:
    """Row F1 of the newcomer's table, exactly as typed."""
    model = play(CLAUDE, "echo hi > hi.txt")
    home = agents_world(worlds, CLAUDE, model)
    checkout = HOME / "code/hi"
    home.outside(checkout).mkdir(parents=True)
    home.shell(checkout, "git init -q; echo hello > a.txt; git add -A; git commit -qm Begin")
    done = home.run(checkout, "garrison", "run", "say hi", "--agent", "claude", "--no-gate", "--setup", "true")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{home.logs()}"
    assert done.stdout.strip().endswith("1 of 1 landed"), done.stdout
    assert git(home.outside(checkout), "show", "main:hi.txt") == "hi"
    model.close()


def test_codex_drives_a_run_over_mcp_from_its_start_to_landed(worlds: Worlds) -> None:
    """With the configuration that `garrison mcp install` prints, no call waits for an approval."""
    told: list[str] = []

    def call(tool: str, **arguments: str) -> Turn:
        return say(use("exec", text=f"// @exec: {{\"yield_time_ms\": 150000}}\ntext(JSON.stringify(await "
                                    f"tools.mcp__garrison_crew__{tool}({json.dumps(arguments)})));"))

    def script(asked: Request) -> Turn:
        text = str(asked.result)
        told.append(text)
        run = re.search(r"graph-[0-9a-f]{6}", " ".join(told))
        if asked.step == 0:
            return call("run", request_id="1", graph=DATED, gate="true")
        if asked.step == 1:
            return call("control", run=run[0] if run else "", action="retry", node="made")
        return say("It is over.") if '"is_over":true' in text else call("wait", run=run[0] if run else "")

    model = ModelServer(script)
    home = agents_world(worlds, CODEX_EXEC, model)
    checkout = HOME / "code/driven"
    home.outside(checkout).mkdir(parents=True)
    home.shell(checkout, "git init -q; echo hello > a.txt; git add -A; git commit -qm Begin; mkdir ~/.codex; "
                         "garrison mcp install --client codex > ~/.codex/config.toml")
    done = home.run(checkout, "codex", "exec", "-c", f'openai_base_url="{home.env["OPENAI_BASE_URL"]}"', "make it")
    model.close()
    assert done.stdout.strip().endswith("It is over."), f"{done.stdout}\n{done.stderr}\n{told}\n{home.logs()}"
    assert "approval" not in told[2], "only garrison refuses a control call"
    assert '"status":"done"' in told[-1]
    assert home.shell(checkout, "git show main:made.txt")
