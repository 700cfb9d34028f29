"""The demonstration's agents really change its project: alone, merged in any order, and killed on the way."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from garrison.pipeline.parser import parse_file
from garrison.pipeline.plan import RunPlan, plan_run
from support import DEADLINE, wait_for

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples" / "demo"
CREW = DEMO / "agents"
TASKS = ("add_currency", "convert_report", "add_csv_export", "annotate_returns", "rename_between")
"""Those whose branches merge in any order."""
MEETING = {"rename_between": "--until-begun add_monthly", "add_monthly": "--until-landed rename_between",
           "add_csv_export": "--until-begun add_stats", "add_stats": "--until-landed add_csv_export"}
"""Task → the task it waits for, as in the graph."""


class Project:
    """A fresh git repository with a copy of the example project."""

    def clear_locks(self) -> None:
        """Remove what a git that was killed with its agent left, as a runner does before a successor starts."""
        for lock in [*(self.path / ".git").glob("*.lock"), *(self.path / ".git/refs/heads").glob("*.lock")]:
            lock.unlink()

    def __init__(self, path: Path) -> None:
        self.path = path
        shutil.copytree(DEMO / "ledger", path, ignore=shutil.ignore_patterns("__pycache__"))
        self.environment = {
            "PATH": os.environ["PATH"], "HOME": str(path.parent), "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C.UTF-8",
            "GARRISON_DEMO_CREW": str(CREW), "PYTHONDONTWRITEBYTECODE": "1",
        }
        self.git("init", "--quiet", "--initial-branch=main")
        self.git("config", "user.name", "somebody")
        self.git("config", "user.email", "somebody@localhost")
        self.git("add", "--all")
        self.git("commit", "--quiet", "-m", "The ledger")

    def git(self, *arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=self.path, env=self.environment, capture_output=True, text=True,
                              check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def start(self, task: str, *arguments: str, pace: str = "0", **extra: str) -> subprocess.Popen[str]:
        environment = {**self.environment, "CREW_PACE": pace, **extra}
        command = [sys.executable, str(CREW / f"{task}.py"), *arguments]
        return subprocess.Popen(command, cwd=self.path, env=environment, text=True, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)

    def work(self, task: str, *arguments: str, **extra: str) -> str:
        agent = self.start(task, *arguments, **extra)
        output, _ = agent.communicate(timeout=DEADLINE)
        assert agent.returncode == 0, output
        assert self.git("status", "--porcelain") == "", output
        return output

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["sh", "-c", command], cwd=self.path, env=self.environment, capture_output=True,
                              text=True, timeout=DEADLINE, check=False)

    def branch(self, name: str, start: str = "main") -> None:
        self.git("switch", "--quiet", "--create", name, start)

    def land(self, task: str) -> None:
        self.git("switch", "--quiet", "main")
        self.git("merge", "--quiet", "--no-ff", "-m", f"A task\n\nGarrison-Node: {task}\nGarrison-Run: r1", task)

    def gate(self, plan: RunPlan) -> subprocess.CompletedProcess[str]:
        return self.run(str(plan.gate))

    def tree(self) -> str:
        return self.git("rev-parse", "HEAD^{tree}")


@pytest.fixture(scope="module")
def plan() -> RunPlan:
    return plan_run(parse_file(DEMO / "demo.dot"))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "ledger")


@pytest.fixture
def killable() -> Iterator[Callable[[subprocess.Popen[str]], None]]:
    agents: list[subprocess.Popen[str]] = []

    def kill(agent: subprocess.Popen[str]) -> None:
        agents.append(agent)
        os.killpg(agent.pid, signal.SIGKILL)
        agent.communicate(timeout=DEADLINE)

    yield kill
    assert all(agent.returncode == -signal.SIGKILL for agent in agents)


def assert_green(project: Project, plan: RunPlan, *tasks: str) -> None:
    for command in [plan.gate, *(str(plan.tasks[task].acceptance) for task in tasks)]:
        done = project.run(command)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_pipeline_runs_these_agents(plan: RunPlan) -> None:
    assert set(plan.tasks) == {*TASKS, *MEETING}
    assert plan.flow == "dag"
    assert plan.predecessors["convert_report"] == ("add_currency",)
    for task in plan.tasks:
        meeting = f" {MEETING[task]}" if task in MEETING else ""
        assert plan.tasks[task].command == f'python3 "$GARRISON_DEMO_CREW/{task}.py"{meeting}'
    assert plan.tasks["add_stats"].attrs["rework"] == "merge"


def test_nothing_is_accepted_before_the_work_is_done(project: Project, plan: RunPlan) -> None:
    assert_green(project, plan)
    for task in plan.tasks:
        assert project.run(str(plan.tasks[task].acceptance)).returncode != 0, task


@pytest.fixture(scope="module")
def branches(tmp_path_factory: pytest.TempPathFactory, plan: RunPlan) -> Project:
    """Return a project with each task on its own branch, started as in the graph, gate and acceptance green there."""
    project = Project(tmp_path_factory.mktemp("branches") / "ledger")
    for task in (*TASKS, "add_monthly", "add_stats"):
        project.branch(task, "add_currency" if task == "convert_report" else "main")
        project.work(task)
        assert_green(project, plan, task)
    return project


@pytest.mark.parametrize("order", [
    TASKS[:1:-1] + TASKS[:2],
    *(pytest.param(order, marks=pytest.mark.slow) for order in (TASKS, ("add_currency", *TASKS[2:], "convert_report"))),
])
def test_branches_merge_in_any_order(branches: Project, plan: RunPlan, order: tuple[str, ...]) -> None:
    branches.git("switch", "--quiet", "--detach", "main")
    for task in order:
        branches.git("merge", "--quiet", "--no-ff", "-m", f"Merge {task}", task)
        assert_green(branches, plan)


def test_each_task_starts_from_what_the_others_landed(project: Project, plan: RunPlan) -> None:
    for task in reversed(TASKS[2:]):
        project.work(task)
    for task in TASKS[:2]:
        project.work(task)
    assert_green(project, plan, *TASKS)


def test_monthly_breaks_the_merged_tree_but_not_when_started_again(branches: Project, plan: RunPlan) -> None:
    """It merges without a conflict and is red; started at the target's tip it finds the new name by itself."""
    branches.git("switch", "--quiet", "--create", "renamed", "rename_between")
    branches.git("merge", "--quiet", "--no-ff", "-m", "Both", "add_monthly")
    red = branches.gate(plan)
    assert red.returncode == 1
    assert "'Journal' object has no attribute 'between'" in red.stderr
    branches.branch("again", "rename_between")
    assert "by Journal.within" in branches.work("add_monthly")
    assert_green(branches, plan, "add_monthly")
    assert "journal.within(" in branches.git("show", "again:ledger/monthly.py")


@pytest.mark.parametrize("style", ["merge", "zdiff3"])
def test_stats_conflicts_and_then_resolves_it(branches: Project, plan: RunPlan, style: str,
                                              killable: Callable[[subprocess.Popen[str]], None]) -> None:
    """Also when it is killed in the middle; the result has both commands, each once."""
    branches.branch(f"stats-{style}", "add_stats")
    merge = branches.run(f"git -c merge.conflictStyle={style} merge --no-commit --no-ff add_csv_export")
    assert merge.returncode == 1, merge.stdout
    assert branches.git("diff", "--name-only", "--diff-filter=U").splitlines() == ["README.md", "ledger/cli.py"]
    cli = branches.path / "ledger/cli.py"
    assert ("|||||||" in cli.read_text(encoding="utf-8")) == (style == "zdiff3")
    agent = branches.start("add_stats", pace="30")
    wait_for("the conflict is being resolved", lambda: "<<<<<<<" not in (text := cli.read_text(encoding="utf-8"))
             and "run_stats)" in text)
    killable(agent)
    branches.clear_locks()
    assert "merged the target" in branches.work("add_stats")
    assert_green(branches, plan, "add_stats", "add_csv_export")
    text = cli.read_text(encoding="utf-8")
    assert [text.count(f"def run_{name}(") for name in ("export", "stats")] == [1, 1]
    assert branches.git("rev-list", "--count", "--merges", "add_stats..HEAD") == "1"
    assert "=======" not in branches.git("grep", "-h", "", "--", "*.py", "*.md")


def test_a_task_waits_for_the_other_of_its_pair(project: Project) -> None:
    in_a_run = {"GARRISON_RUN": "r1"}
    project.branch("rename_between")
    first = project.start("rename_between", "--until-begun", "add_monthly", **in_a_run)
    wait_for("it waits", lambda: "waiting until add_monthly has begun" in first.stdout.readline())
    assert first.poll() is None
    project.git("branch", "garrison/r1/add_monthly", "main")
    output, _ = first.communicate(timeout=DEADLINE)
    assert (first.returncode, "add_monthly has begun" in output) == (0, True)

    project.branch("add_monthly")
    arguments = ("--until-landed", "rename_between")
    assert "not seen in time" in project.work("add_monthly", *arguments, CREW_PATIENCE="0.3", **in_a_run)
    assert "waiting" not in project.work("add_monthly", *arguments), "alone, it waits for no task"
    project.land("rename_between")
    project.git("switch", "--quiet", "add_monthly")
    assert "waiting" not in project.work("add_monthly", *arguments, **in_a_run)


@pytest.mark.parametrize("task", ["add_currency", "rename_between", *(
    pytest.param(task, marks=pytest.mark.slow) for task in ("add_csv_export", "annotate_returns", "add_monthly"))])
def test_an_agent_killed_after_its_first_commit_continues(
    project: Project, task: str, killable: Callable[[subprocess.Popen[str]], None]
) -> None:
    base = project.git("rev-parse", "HEAD")
    project.work(task)
    whole, commits = project.tree(), project.git("rev-list", "--count", "HEAD")
    project.git("reset", "--quiet", "--hard", base)

    agent = project.start(task, pace="30")  # first killed while a step is written, but not committed
    wait_for("a step is written", lambda: project.git("status", "--porcelain") != "")
    killable(agent)
    project.clear_locks()
    agent = project.start(task, pace="0.6")  # then after a commit
    wait_for("a commit", lambda: project.git("rev-parse", "HEAD") != base)
    killable(agent)
    project.clear_locks()

    output = project.work(task)
    assert "step 1 of" in output
    assert (project.tree(), project.git("rev-list", "--count", "HEAD")) == (whole, commits)


def test_leftovers_committed_by_another_process_are_no_obstacle_and_a_second_run_changes_nothing(
        project: Project) -> None:
    base = project.git("rev-parse", "HEAD")
    project.work("add_currency")
    whole = project.tree()
    project.git("reset", "--quiet", "--hard", base)
    project.git("cherry-pick", "--no-commit", "ORIG_HEAD~3")
    project.git("commit", "--quiet", "-m", "leftovers")
    assert "step 1 of 4 was there" in project.work("add_currency")
    assert project.tree() == whole
    head = project.git("rev-parse", "HEAD")
    project.work("add_currency")
    assert project.git("rev-parse", "HEAD") == head


def test_a_successor_prints_why_it_is_there_and_leaves_notes(project: Project, tmp_path: Path) -> None:
    prompt, notes = tmp_path / "prompt.md", tmp_path / "notes"
    prompt.write_text("# Task\n\n## REWORK: attempt 2\n\nthe gate failed\n", encoding="utf-8")
    output = project.work("add_csv_export", GARRISON_PROMPT_FILE=str(prompt), GARRISON_NOTES_FILE=str(notes),
                          GARRISON_NODE="add_csv_export", GARRISON_ATTEMPT="2")
    assert "attempt 2" in output
    assert "I am told\nREWORK: attempt 2\n\nthe gate failed\n" in output
    assert len(notes.read_text(encoding="utf-8").splitlines()) == 3
    prompt.write_text("Do it.\n\n## RESUMPTION CONTEXT\nlast commit: abc\n", encoding="utf-8")
    assert "last commit: abc" in project.work("add_csv_export", GARRISON_PROMPT_FILE=str(prompt))


def test_an_unexpected_project_is_refused_in_one_line(tmp_path: Path, project: Project) -> None:
    amounts = project.path / "ledger" / "amounts.py"
    amounts.write_text(amounts.read_text(encoding="utf-8").replace("cents: int", "pennies: int"), encoding="utf-8")
    done = project.run(f"{sys.executable} {CREW}/add_currency.py")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    project.path = tmp_path
    assert project.run(f"{sys.executable} {CREW}/add_currency.py").returncode == 2
