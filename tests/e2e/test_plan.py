"""`garrison plan`: from a goal to landed work, with programs as planners and agents."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from doubles.forge_state import Issue
from forge_place import ForgePlace
from screen_support import Screen
from support import Place, git, wait_for


def task(name: str, *needs: str, files: str = "", **more: object) -> dict[str, object]:
    return {"name": name, "title": f"Write {name}", "prompt": f"write {name}", "files": [files or f"{name}.txt"],
            "needs": [{"task": other, "what": f"{other}.txt"} for other in needs], **more}


GOOD = {"tasks": [task("one"), task("two"), task("both", "one", "two", acceptance="both.txt has two lines")],
        "check": "both.txt is there"}
FAILS = 'two) exit 3;; two_again) echo two >"two.txt"; exit;;'
"""A case of the agent's script: the task `two` fails, and the one that replaces it does not."""
OTHER_WAY = {"tasks": [task("two_again", "one", replaces="two", files="two.txt")]}


def configure(place: Place, script: str = "") -> None:
    """Make an agent the default one that writes a file named as its node, and that checks the goal by that."""
    shell = ('n=$(basename "$(git branch --show-current)"); '
             f'case $n in check_goal) test -e both.txt; exit $?;; {script} esac; echo "$n" >"$n.txt"')
    place.configure('[launch]\nagent = "double"\n[agents.double]\nbudget = 5\n'
                    f'argv = ["sh", "-c", {json.dumps(shell)}]\n')


def plan(place: Place, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = place.command("plan", *words, cwd=place.repo)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def records(place: Place) -> dict[str, Any]:
    """Return the record of the only plan."""
    [path] = (place.home / "plans").glob("*/plan.json")
    return json.loads(path.read_text())


@pytest.mark.traced
def test_no_run_starts_before_approval_and_a_hostile_plan_has_no_effect(place: Place) -> None:
    """A malformed plan goes back, what is not allowed is left out; the planner can read but not write."""
    configure(place)
    before = git(place.repo, "for-each-ref"), git(place.repo, "worktree", "list"), ""
    hostile = {"tasks": [
        task("one", command="test -e one.txt", agent="command", budget=1e9),
        task("two", command="touch ../broken", acceptance="`$(touch ../broken)`"),
        task("both", "one", "two")], "check": "both.txt", "rights": {"write": ["/"]}, "gate": "true", "land": "none"}
    wrong = {"tasks": [task("exit", files="../../etc/passwd"), task("a", "a"), task("b", "c", files="/etc/passwd")]}
    command = place.plan("no plan", wrong, hostile, before="touch x; ls -a; cat calc.py; echo >calc.py",
                         settings='commands = ["test -e one.txt"]')
    config = place.home / "config.toml"
    settings = config.read_text()
    config.write_text(f'{settings}[services.db]\ncommand = "sleep 60"\nport = 5432\n')  # a planner starts no service
    done = plan(place, "write both", "--command", command, "--no-gate", "--terminal", "process", code=3)
    config.write_text(settings)
    assert "the plan goes back (1 of 3): there is no JSON object" in done.stderr
    for reason in ("exit: the name is taken", "'../../etc/passwd' is not a path", "a: it needs 'a'", "b: it needs 'c'"):
        assert reason in done.stderr, (reason, done.stderr)
    assert "two: the command 'touch ../broken' is not among commands of [plan]" in done.stderr
    assert "one: the agent 'command' is not among agents" in done.stderr
    assert "one: the budget 1e+09 was left out; its agent has $5" in done.stderr
    assert "one → both: one.txt" in done.stderr and "unknown" in done.stdout
    made = records(place)
    assert tuple(git(place.repo, *words) for words in (
        ["for-each-ref"], ["worktree", "list"], ["status", "--porcelain"])) == before
    assert not (place.home / "runs").exists()
    assert not (place.home / "plans" / made["id"] / "tree").exists()
    output = (place.home / "plans" / made["id"] / "planner/3/output.log").read_text()
    assert "def add" in output and "Read-only file system" in output and ".git" not in output, output

    out = place.root / "kept.dot"
    plan(place, "--continue", made["id"], "--out", str(out))
    assert out.read_text() == (place.home / "plans" / made["id"] / "plan.dot").read_text()
    done = plan(place, "--continue", made["id"], "--yes", "--no-gate", "--terminal", "process")
    assert "run done: 3 of 4 landed, 1 no change" in done.stdout, done.stdout + done.stderr
    assert {"one.txt", "two.txt", "both.txt"} <= set(git(place.repo, "ls-tree", "--name-only", "main").split())
    assert not list(place.folder.rglob("broken")) and "which is done" in plan(place, "--continue", made["id"]).stderr


def test_questions_are_asked_and_answered_and_a_weak_plan_goes_back_once(place: Place) -> None:
    configure(place)
    chain = {"tasks": [task("one"), task("two", "one"), task("both", "two")]}
    shared = {"tasks": [task("one"), task("two", files="*.txt"), task("both", "one", "two")]}
    command = place.plan({"questions": ["Which colour?", "How big?"]}, chain, shared)
    done = plan(place, "write both", "--command", command, code=3)
    assert "question 2: How big?" in done.stderr, done.stderr
    name = records(place)["id"]
    screen = Screen(place, "plan", "--continue", name, "--no-gate", "--terminal", "process", "--detach",
                    EDITOR="sed -i s/Write.one/Sing/")
    screen.until("colour?", "your answer:")
    screen.type("teal\n")
    screen.until("How big?", "your answer:")
    screen.type("small\n")
    shown = screen.until("start? [y]es, [e]dit, [N]o:")
    assert "goes back once" in shown and "warning: one and two both change one.txt" in shown.replace("\r\n", " "), shown
    prompt = (place.home / "plans" / name / "planner/2/prompt.md").read_text()
    assert "  teal" in prompt and "  small" in prompt and "cannot be used" not in prompt
    assert "are a chain" in (place.home / "plans" / name / "planner/3/prompt.md").read_text()
    screen.type("e\n")
    assert "Sing" in screen.until("start?")
    screen.type("y\n")
    code, last = screen.end()
    assert code == 0 and "works in the background" in last, last
    wait_for("the run ends", lambda: place.status(name) == "done")
    assert "Sing" in git(place.repo, "log", "--format=%s", "main")


def test_a_goal_of_one_task_becomes_a_run_and_an_edited_graph_is_checked(place: Place) -> None:
    configure(place)
    command = place.plan({"tasks": [task("both")]})
    done = plan(place, "write both", "--command", command, "--no-gate", code=3)
    name = records(place)["id"]
    assert f"`garrison plan --continue {name} --yes` starts it, with --no-check as `garrison run`" in done.stderr
    graph = json.loads(plan(place, "--continue", name, "--json", code=3).stdout)["graph"]
    edited = place.root / "edited.dot"
    edited.write_text(graph.replace("both -> check_goal", "both -> nowhere"))
    assert "no path leads from start" in plan(place, "--continue", name, "--graph", str(edited), code=1).stderr
    edited.write_text(graph.replace("Write both", "Sing"))
    assert "Sing" in plan(place, "--continue", name, "--graph", str(edited), code=3).stdout
    assert "--graph needs --continue" in plan(place, "x y", "--graph", str(edited), code=2).stderr
    screen = Screen(place, "plan", "--continue", name, "--no-gate", "--terminal", "process", "--detach")
    screen.until("start? [y]es, [r]un without the check, [e]dit, [N]o:")
    screen.type("r\n")
    code, last = screen.end()
    assert code == 0 and "works in the background" in last, last
    assert "check_goal" not in (place.home / "runs" / name / "graph.dot").read_text()
    assert "has started" in plan(place, "--continue", name, "--graph", str(edited), code=1).stderr
    assert place.command("stop", name).returncode == 0


def test_a_killed_plan_is_kept_and_a_failed_one_is_corrected_once(place: Place) -> None:
    configure(place, FAILS)
    command = place.plan(GOOD, OTHER_WAY, before=f"echo here; until test -e {place.root}/go; do sleep 0.1; done")
    child = place.begin("plan", "write both", "--command", command, "--target-dir", str(place.repo))
    wait_for("the planner is at work", lambda: [each for each in place.home.glob("plans/*/planner/1/output.log")
                                                if "here" in each.read_text()])
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    made = records(place)
    assert (made["stage"], made["tries"]) == ("planning", 1)
    wait_for("nothing of the planner is left", lambda: not [each for each in place.living_processes()
                                                            if "planner" in each.argv])
    (place.root / "go").touch()
    (place.root / "answer-2").rename(place.root / "answer-3")
    (place.root / "answer-2").write_text(json.dumps(GOOD))
    options = ("--no-gate", "--terminal", "process", "--max-rework", "0", "--yes")
    done = plan(place, "--continue", made["id"], *options)
    assert "two failed: the planner looks for another way (1 of 1)" in done.stderr, done.stderr
    assert "run failed: 1 of 4 landed" in done.stdout and "run done: " in done.stdout, done.stdout
    graph = (place.home / "plans" / made["id"] / "plan.dot").read_text()
    assert "x_replaces=two" in graph and "status=validated" in graph and "two_again -> both" in graph, graph
    assert (records(place)["runs"], records(place)["replans"]) == ([made["id"], f"{made['id']}-2"], 1)
    landed = git(place.repo, "log", "--format=%s", "main").splitlines()
    assert landed.count("Write one") <= 2 and {"both.txt", "two.txt"} <= set(
        git(place.repo, "ls-tree", "--name-only", "main").split())
    assert Path(place.repo, "both.txt").exists()


def test_killed_at_each_step_a_plan_is_one_run_and_its_correction_another(place: Place) -> None:
    configure(place, FAILS)
    command = place.plan(GOOD, OTHER_WAY)
    steps = {"plan:planning", "plan:graph", "plan:proposed", "plan:launched", "plan:created"}
    place.kill_at(*steps, times=2, keep_going=False)
    words, options = ["write both", "--command", command], ["--no-gate", "--terminal", "process", "--max-rework", "0"]
    for _ in range(12):
        done = place.command("plan", *words, *options, "--yes", "--detach", cwd=place.repo)
        if done.returncode != -signal.SIGKILL:
            break
        words = ["--continue", records(place)["id"]]
        for number in range(2, 9):  # planned again, it answers with its first plan
            (place.root / f"answer-{number}").write_text(json.dumps(GOOD))
    assert done.returncode == 0, done.stderr
    assert set(place.failpoint_kills()) == steps
    name = records(place)["id"]
    for number in range(2, 9):
        (place.root / f"answer-{number}").write_text(json.dumps(OTHER_WAY))
    wait_for("the corrected run ends", lambda: place.status(f"{name}-2") == "done")
    assert sorted(path.name for path in (place.home / "runs").iterdir()) == [name, f"{name}-2"]
    assert records(place)["runs"] == [name, f"{name}-2"]


def test_a_run_in_the_background_is_corrected_within_the_approved_budget_over_kills(place: Place) -> None:
    """First the command that corrects it is killed, then all processes."""
    configure(place, FAILS)
    command = place.plan(GOOD, OTHER_WAY, before=(
        "case $GARRISON_PLAN_FILE in *planner/1/*) ;; "
        f"*) echo here; until test -e {place.root}/go; do sleep 0.1; done;; esac"))
    done = plan(place, "write both", "--command", command, "--target-dir", str(place.repo), "--no-gate", "--terminal",
                "process", "--max-rework", "0", "--budget-run", "4", "--yes", "--detach")
    name = records(place)["id"]
    assert f"run {name} works in the background" in done.stdout

    def is_asked(number: int) -> bool:
        path = place.home / "plans" / name / f"planner/{number}/output.log"
        return path.exists() and "here" in path.read_text()

    wait_for("the planner is asked to correct it", lambda: is_asked(2))
    assert place.status(name) == "failed"
    os.kill(next(each.pid for each in place.living_processes() if f"plan --continue {name}" in each.argv),
            signal.SIGKILL)
    wait_for("the launcher asks again", lambda: is_asked(3))
    place.kill_all()
    assert place.command("up").stdout.split() == [name]
    wait_for("the next launcher does", lambda: is_asked(4))
    assert "works on it" in plan(place, "--continue", name, code=1).stderr
    (place.root / "go").touch()
    second = f"{name}-2"
    wait_for("the corrected run ends", lambda: (place.home / "runs" / second / "launch.json").exists()
             and place.status(second) == "done")
    launched = json.loads((place.home / "runs" / second / "launch.json").read_text())
    assert launched["no_gate"] and launched["max_rework"] == 0 and not launched.get("on_failure"), launched
    made = records(place)
    assert (made["runs"], made["approved"]) == ([name, second], 4.0)
    wait_for("its launcher reports the end", lambda: not place.living_processes())
    assert place.command("up").stdout == ""


def test_an_acp_planner_corrects_its_plan_and_take_plan_asks_before_it_starts_an_issues_run(place: Place) -> None:
    """It hands the plan in at the end of its message, or in its report."""
    bad, good = json.dumps({"tasks": [task("one", "none")]}), {"tasks": [task("one"), task("both")]}
    lint = json.dumps({"tasks": [task("one", acceptance="$gaol")]})
    block = json.dumps({"status": "success", "summary": "planned", "context_updates": {"output": good}})
    thinker = place.acp_agent(
        "thinker", [{"run": "cat calc.py; touch x"}, {"say": f"This: {bad}"}], [{"say": f"Yes: {lint}"}],
        [{"say": f"```garrison-result\n{block}\n```"}])
    configure(place)
    with (place.home / "config.toml").open("a") as config:
        config.write('[plan]\nagent = "thinker"\n[agents.thinker]\n'
                     + "".join(f"{key} = {json.dumps(value)}\n" for key, value in thinker.items()))
    with ForgePlace(place) as there:
        with there.server.state.lock:
            there.repository.next_number = 8
            there.repository.issues.append(Issue(7, "Add both", "Please add both.", "eve", ["garrison"]))
        screen = Screen(place, "take", "7", "--plan", "--target-dir", str(place.repo), "--base", "origin:main",
                        "--no-gate", "--terminal", "process")
        shown = screen.until("start? [y]es, [e]dit, [N]o:")
        assert "goes back (1 of 3): one: its prompt has $gaol" in shown, shown  # its last word, once asked to report
        assert not (place.home / "runs").exists() and not there.pulls
        screen.type("y\n")
        code, last = screen.end()
        assert code == 0 and "issue 7: run issue-7-" in last, last
        run = records(place)["runs"][0]
        assert '"Write both"' in (place.home / "runs" / run / "graph.dot").read_text()
        wait_for("it starts", lambda: place.nodes(run))
        assert place.command("stop", run).returncode == 0
        assert "is for an issue" in plan(place, "--continue", records(place)["id"], code=1).stderr
