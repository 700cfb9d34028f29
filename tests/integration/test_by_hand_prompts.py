"""Every command in the prompts for roles played by hand works exactly as printed."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from garrison.records import run as run_records
from garrison.records.identity import Identity
from garrison.records.run import Launch, RunFiles
from garrison.records.store import Store
from garrison.supervise.observer import Observer
from garrison.system.clock import SystemClock
from garrison.system.process_control import RealProcesses
from garrison.values import replace
from support import DEADLINE, Place, git

OLD = "2026-01-02T03:04:05.000000Z"

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"


def bash(place: Place, block: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["bash", "-e", "-c", block], env=place.for_scripts, cwd=place.root, capture_output=True,
                          text=True, check=False, timeout=DEADLINE)
    assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
    return done


def typed(place: Place, *arguments: str) -> list[str]:
    """Print a section and run each of its blocks, with an orchestrator's work in the worktree; return their outputs."""
    section = place.command("prompt", *arguments, "--repo-root", place.repo)
    assert section.returncode == 0, section.stderr
    found = []
    for block in re.findall(r"```bash\n(.*?)```", section.stdout, re.DOTALL):
        assert "$" not in block, "every name was filled in"
        found.append(bash(place, block).stdout)
        if "worktree add" in block:
            (Path(shlex.split(block)[-1]) / "new.txt").write_text("new\n")
    return found


@pytest.fixture(params=[pytest.param("an empty home", marks=pytest.mark.slow), "a home with runs"])
def place(place: Place, request: pytest.FixtureRequest) -> Iterator[Place]:
    """Yield a home with a running, a silent and an ended run, whose names are those typed by hand."""
    if request.param == "an empty home":
        yield place
        return
    store, process = Store(place.home), subprocess.Popen(["sleep", "600"])
    here = Observer(store, RealProcesses(), SystemClock()).origin(process.pid)
    now = SystemClock().utc()
    for run, status, at in (("living", "active", now), ("stale", "active", OLD), ("ended", "terminated", OLD)):
        launch = Launch(run, pipeline_id="crew", repo=str(place.repo), base="main", created_at=OLD, trees="/trees")
        run_records.save(RunFiles(place.home, run).launch, launch)
        for role, name in (("guardian", "crew"), ("guardian", "PRD1"), ("runner", "fix"), ("runner", "impl_a")):
            identity = Identity("id", role, name, run, OLD, last_heartbeat=at, status=status)
            if run == "living":
                identity = replace(identity, pid=here.pid, start_ticks=here.start_ticks, pid_ns=here.pid_ns,
                                   boot_id=here.boot_id, host=here.host)
            store.update(Identity, identity.key, lambda _, made=identity: made)
    yield place
    process.kill()
    process.wait()


@pytest.fixture
def feature(place):
    """Yield a branch `feature` with a commit, and a queue whose gate is recorded."""
    git(place.repo, "branch", "feature")
    git(place.repo, "worktree", "add", "-q", str(place.root / "w"), "feature")
    (place.root / "w/new.txt").write_text("new\n")
    git(place.root / "w", "add", "-A")
    git(place.root / "w", "commit", "-qm", "Add new")
    recorded = place.command("merge-queue", "process", "--repo-root", place.repo, "--gate", "test -f calc.py")
    assert recorded.returncode == 0, recorded.stderr
    yield "feature"
    git(place.repo, "worktree", "remove", "--force", str(place.root / "w"))


def test_a_runner_and_a_guardian_played_by_hand_as_printed(place):
    """Both register, MERGE_READY goes up, the queue lands, MERGE_COMPLETE comes back, both end: a fresh repository."""
    for words in ("create", "mark-terminated"):  # one that has ended gets no signal of a later chain
        bash(place, f"{sys.executable} {SCRIPTS}/identity_registry.py {words} guardian PRD0")
    said: dict[str, list[str]] = {}
    failed: list[BaseException] = []

    def play(role: str, name: str) -> None:
        try:
            said[role] = typed(place, role, name)
        except BaseException as error:
            failed.append(error)

    players = [threading.Thread(target=play, args=names) for names in (("runner", "impl_a"), ("guardian", "PRD1"))]
    for player in players:
        player.start()
    for player in players:
        player.join()
    if failed:
        raise failed[0]
    assert git(place.repo, "show", "main:new.txt") == "new"
    answers = [json.loads(text) for text in said["runner"] if '"MERGE_COMPLETE"' in text]
    assert [answer["payload"]["commit"] for answer in answers] == [git(place.repo, "rev-parse", "main")]
    for name in ("runner-impl_a", "guardian-PRD1"):
        assert json.loads((place.home / f"hooks/{name}.json").read_text())["phase"] == "merged"
        assert json.loads((place.home / f"identities/{name}.json").read_text())["status"] == "terminated"
    inboxes = {folder.name: sorted(path.name.split("-")[-2] for path in folder.rglob("*.json"))
               for folder in (place.home / "signals").iterdir()}
    assert "MERGE_READY" in inboxes.pop("guardian-PRD1")
    assert set(inboxes) <= {"runner-impl_a", "guardian-PRD0"}, "nothing went to another run"


def test_a_section_names_the_worktree_of_a_branch_and_process_the_repository_of_waiting_entries(place, feature,
                                                                                                tmp_path):
    runner = place.command("prompt", "runner", "fix", "--branch", feature, "--pipeline", "crew",
                           "--repo-root", place.repo)
    assert f"checked out in {place.root / 'w'}" in runner.stdout
    assert "write runner guardian-crew MERGE_READY" in runner.stdout
    assert "worktree add" not in runner.stdout
    guardian = place.command("prompt", "guardian", "crew", "--repo-root", place.repo)
    assert "gate 'test -f calc.py'" in guardian.stdout
    assert "merge-queue config" not in guardian.stdout
    assert place.command("merge-queue", "enqueue", "fix", feature, "--repo-root", place.repo).returncode == 0
    other = tmp_path / "other"
    git(tmp_path, "clone", "-q", str(place.repo), str(other))
    for where, code in ((other, 0), (tmp_path, 1)):
        done = place.command("merge-queue", "process", "--repo-root", where)
        assert f"fix waits to land on main of {place.repo}: pass --repo-root {place.repo}" in done.stderr, done
        assert done.returncode == code, done


def test_commands_without_a_run_use_the_records_made_by_hand(place):
    """A name without a run means the record made by hand, whatever runs exist."""
    for line in ("identity_registry.py create guardian PRD1",
                 f"spawn_runner.py --node k --prd P --command true --terminal process --target-dir {place.repo}",
                 "signal_protocol.py write runner guardian-PRD1 MERGE_READY --payload '{\"node_id\":\"impl_a\"}'"):
        done = bash(place, f"{sys.executable} {SCRIPTS}/{line}")
    assert Path(done.stdout.strip()).parent == place.home / "signals/guardian-PRD1"
    taken = bash(place, f"{sys.executable} {SCRIPTS}/signal_protocol.py wait guardian-PRD1 --timeout 0")
    assert json.loads(taken.stdout)["source"]["name"] == "impl_a"
    unknown = bash(place, f"{sys.executable} {SCRIPTS}/signal_protocol.py write runner guardian-PRD2 MERGE_READY")
    assert Path(unknown.stdout.strip()).parent == place.home / "signals/guardian-PRD2"


def test_a_registered_guardian_is_signalled_once_about_a_crash(place):
    for words in ("create guardian crew", "create runner fix", "mark-crashed runner fix", "mark-crashed runner fix"):
        bash(place, f"{sys.executable} {SCRIPTS}/identity_registry.py {words}")
    listed = json.loads(place.command("signals", "list", "--json").stdout)
    assert [(each["signal_type"], each["source"]["name"], each["payload"].get("why")) for each in listed] == [
        ("AGENT_REGISTERED", "fix", None), ("AGENT_CRASHED", "fix", "marked by hand")]


SNIPPET = """
import sys; sys.path.insert(0, '{scripts}')
from merge_queue import process_next
from signal_protocol import write_signal
result = process_next()
if result['success']:
    write_signal('guardian', 'runner', 'MERGE_COMPLETE', {{'node_id': result['entry']['node_id']}}, '{scripts}/../pipelines/signals')
else:
    write_signal('guardian', 'runner', 'MERGE_FAILED', {{'node_id': result['entry']['node_id'], 'error': result['error']}}, '{scripts}/../pipelines/signals')
print(result)
"""  # noqa: E501  # as users have it in their prompts
"""What a prompt of the original tells a guardian to run, on MERGE_READY."""


def test_the_lines_of_an_original_guardian_prompt_land_and_answer(place, feature):
    """In a one-line program and in a script of the user's, by the system's Python; without an entry nothing is sent."""
    program = SNIPPET.format(scripts=SCRIPTS)
    (place.root / "mine").mkdir()
    (place.root / "mine/demo.py").write_text("OWN = True\n")
    (place.root / "mine/land.py").write_text(program + "import demo\nassert demo.OWN, 'its own module'\n")
    lines = (f"cd {place.repo} && python3 -c \"{program}\"",
             f"cd {place.repo} && PYTHONPATH={place.root}/mine python3 {place.root}/mine/land.py")
    bash(place, f"python3 {SCRIPTS}/identity_registry.py create runner fix")
    for attempt, line in enumerate(lines, 1):
        empty = bash(place, line)
        assert empty.stdout.strip() == "{'success': True, 'entry': {}, 'error': None}"
        assert "no MERGE_COMPLETE is sent" in empty.stderr
        (place.root / "w/new.txt").write_text(f"new {attempt}\n")
        git(place.root / "w", "commit", "-qam", "Change new")
        bash(place, f"python3 {SCRIPTS}/cli.py merge-queue enqueue fix {feature} --repo-root {place.repo}")
        bash(place, line)
        assert git(place.repo, "show", "main:new.txt") == f"new {attempt}"
        inbox = list((place.home / "signals/runner-fix").glob("*MERGE_COMPLETE*.json"))
        assert len(inbox) == 2 * attempt, "the queue's own signal, and the one that the lines write"
    assert not (ROOT / "pipelines/signals").exists()
