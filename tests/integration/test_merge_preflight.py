from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from merge_support import World, check, git, leave_daemon

from garrison.errors import PreflightRed, Refused
from garrison.merge.config import QueueConfig
from garrison.merge.preflight import FOREIGN, foreign_imports, preflight, pythons
from garrison.merge.queue import MergeQueue
from garrison.merge.records import VerdictGiven
from garrison.system import processes
from garrison.system.environment import child_environment


@pytest.fixture
def world(tmp_path):
    return World(tmp_path, gate=None)


def run(world, gate, setup=None, *, timeout=30.0, environ=None, **options):
    environment = child_environment(environ) if environ else world.environment
    lines = []
    result = preflight(world.queue, QueueConfig(gate, setup, False, timeout), trees=world.trees,
                       environment=environment, progress=lines.append, **options)
    return result, lines


def test_a_green_preflight_is_reused_for_the_identical_tree(tmp_path):
    world = World(tmp_path)
    world.user.configure('network = "open"\n')  # a pre-flight's proxy leaves its lock in the queue's folder
    result = preflight(world.queue, world.config, trees=world.trees, environment=world.environment)
    assert (result.commit, world.gates()) == (world.start, 1)
    git(world.repo, "checkout", "-q", "--detach")
    world.branch("one", {"lines.txt": "x\n"})
    world.branch("two", {"lines.txt": "".join(f"{n}\n" for n in range(10))}, start="one")
    world.enqueue("two")  # two commits that together change nothing
    world.land("two")
    assert world.gates() == 1
    check(world)


def test_the_gate_that_a_landing_has_passed_is_not_repeated_by_a_launch(tmp_path):
    """But after one that tested less, and after a pre-flight that allowed what another launch must not rely on."""
    world = World(tmp_path)

    def launch(**options):
        lines = []
        preflight(world.queue, world.config, trees=world.trees, environment=world.environment, recent=3600.0,
                  progress=lines.append, **options)
        return world.gates(), "not repeated" in lines[-1]

    assert launch() == (1, False)
    git(world.repo, "checkout", "-q", "--detach")
    world.branch("one", {"one.txt": "1\n"})
    world.enqueue("one")
    world.drain()
    assert (world.entry("one").status, world.gates()) == ("landed", 2)
    assert launch() == (2, True)

    tree, key = world.queue.git.tree_of("main"), world.config.verdict_key(world.environment)
    partial = VerdictGiven(("one",), "entry", tree, key, "green", "", "", gates=("python",))
    world.queue.append(partial, sync=True)
    assert launch() == (3, False)
    world.queue.record_green(tree, key, FOREIGN)
    assert launch() == (4, False)


def test_a_preflight_runs_outside_every_checkout_and_reports_its_stages(world):
    _, lines = run(world, "test $(git rev-parse --show-toplevel) = $GARRISON_TREE && test -e made", "touch made")
    assert [line.split()[1] for line in lines] == ["set-up", "gate"]
    assert git(world.repo, "status", "--porcelain") == ""


def test_daemons_of_gate_and_setup_end_with_them_wherever_they_hide(world, tmp_path):
    world.user.use_mode("none")  # a sandbox's processes end with it
    pids = tmp_path / "pids"
    daemon = leave_daemon(pids)
    run(world, f"rm -f {tmp_path}/none; {daemon}", f"{daemon}; touch made")
    left = [int(pid) for pid in pids.read_text().split()]
    assert len(left) == 2
    assert not [pid for pid in left if processes.probe(pid) is not None and not processes.probe(pid).zombie]
    assert not [row for row in processes.list_processes() if row.ppid in left]


def test_a_preflight_whose_gate_was_ended_by_a_signal_is_repeated_once(world, tmp_path, monkeypatch):
    monkeypatch.setenv("GARRISON_BEAT_TIMEOUT", "0.5")
    for number in ("KILL", "INT", "STOP"):
        tries = tmp_path / number
        once = f"echo x >> {tries}.{{}}; test $(wc -l < {tries}.{{}}) -gt {{}} || kill -{number} $$"
        result, lines = run(world, once.format("gate", "gate", 1), once.format("setup", "setup", 1), timeout=300.0)
        assert result.commit == world.start
        assert sum("trying once more" in line for line in lines) == 2, lines
    with pytest.raises(PreflightRed):
        run(world, f"echo x >> {tmp_path}/tries; kill -KILL $$")
    assert len((tmp_path / "tries").read_text().split()) == 2


def test_any_other_result_is_refused_with_the_logs_tail(world):
    for gate, setup, word in (
            ("echo why it is red; exit 1", None, "why it is red"), ("no-such-command", None, "not found"),
            ("sleep 60", None, "longer than"), ("exit 5", None, "no tests"),
            ("echo 'Ran 0 tests in 0.000s'", None, "no tests"), ("true", "echo broken set-up; false", "broken set-up"),
            ("cat; echo read to its end; false", None, "read to its end"),
            ("trap '' TERM; (trap '' TERM; sleep 60) & sleep 61; sleep 62", None, "sleep 62` ran longer than"),
            ("true", "no-such-command", "the set-up `no-such-command` was not found"),
            ("true", "sleep 60", "the set-up `sleep 60` ran longer than")):
        with pytest.raises(PreflightRed) as told:
            run(world, gate, setup, timeout=0.3 if "sleep" in f"{gate} {setup}" else 30)
        assert word in f"{told.value}\n{told.value.tail}"
        assert "\n" not in str(told.value)
    assert world.queue.state.green == {}


def test_a_green_preflight_lifts_a_pause(tmp_path):
    world = World(tmp_path, gate=f"test -e {tmp_path}/cure")
    world.add("one", {"a": "a\n"})
    world.drain(until="paused")
    (tmp_path / "cure").touch()
    preflight(world.queue, world.config, trees=world.trees, environment=world.environment)
    world.land("one")


def fake_environment(tmp_path: Path) -> tuple[Path, Path]:
    """Make a virtual environment by hand (symlink and pyvenv.cfg); return its python and its site-packages."""
    site = tmp_path / "env" / "lib" / f"python3.{sys.version_info[1]}" / "site-packages"
    site.mkdir(parents=True)
    (tmp_path / "env/bin").mkdir()
    (tmp_path / "env/bin/python").symlink_to(Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info[1]}")
    base = Path(sys.base_prefix) / "bin"
    (tmp_path / "env/pyvenv.cfg").write_text(f"home = {base}\ninclude-system-site-packages = false\n")
    return tmp_path / "env/bin/python", site


def _pth(site: Path, repo: Path) -> None:
    (site / "__editable__.project-1.pth").write_text(f"{repo}\n")


def _finder(site: Path, repo: Path) -> None:
    (site / "__editable___project_1_finder.py").write_text(
        f"MAPPING: dict[str, str] = {{'project': '{repo}/project'}}\nNAMESPACES: dict[str, list[str]] = {{}}\n")


def _direct(site: Path, repo: Path) -> None:
    (site / "project-1.dist-info").mkdir()
    (site / "project-1.dist-info/direct_url.json").write_text(
        f'{{"url": "file://{repo}", "dir_info": {{"editable": true}}}}')


def test_an_editable_install_from_the_target_repository_is_refused(world, tmp_path):
    world.user.use_mode("none")  # in a sandbox each tree has the checkout's path
    for trap in (_pth, _finder, _direct):
        python, site = fake_environment(tmp_path / trap.__name__)
        trap(site, world.repo)
        environ = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"}
        with pytest.raises(Refused, match=r"--setup .*install -e \. pytest.*-m pytest.*--allow-foreign-imports"):
            run(world, "python -c pass", environ=environ)
    run(world, "python -c pass", environ=environ, allow_foreign_imports=True)


def test_other_editable_installs_and_environments_are_accepted(world, tmp_path):
    python, site = fake_environment(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    _pth(site, elsewhere)
    assert foreign_imports(python, [world.repo], tmp_path, os.environ) == []
    _pth(site, tmp_path / "env" / "lib")
    assert foreign_imports(python, [tmp_path], world.trees, {**os.environ}) == []


def test_the_gates_interpreter_is_found_behind_scripts_and_assignments(tmp_path):
    script = tmp_path / "bin/pytest"
    script.parent.mkdir()
    script.write_text("#!/opt/x/bin/python3\n")
    script.chmod(0o755)
    environment = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    assert pythons("cd sub && FOO=1 pytest -q; make", tmp_path, environment) == [Path("/opt/x/bin/python3")]
    assert [path.name for path in pythons("env A=1 python3 -m pytest", tmp_path, environment)] == ["python3"]
    assert pythons("make check", tmp_path, environment) == []


def test_a_gate_that_changes_its_worktree_does_no_harm(world):
    """Tracked files are restored before the next use and new ones removed; the target sees neither."""
    spoil = "test $(wc -l < lines.txt) = 10 && ! test -e added && rm lines.txt && touch added && git rm -rq --cached ."
    for _ in range(2):
        run(world, spoil)
    assert git(world.repo, "status", "--porcelain") == ""
    assert git(world.repo, "rev-parse", "main") == world.start


def test_the_preflights_of_two_repositories_end_only_their_own_processes(world, tmp_path):
    """Processes are found by their marker: those of another repository's pre-flight in the same home have another."""
    (tmp_path / "b").mkdir()
    other, out = World(tmp_path / "b", gate=None), tmp_path / "markers"
    other.queue = MergeQueue(world.home, other.repo)
    for each in (world, other):
        run(each, f"printenv GARRISON_LIFE >> {out}")
    assert len(set(out.read_text().splitlines())) == 2


def test_a_recent_green_preflight_is_not_repeated(world, tmp_path):
    """It needs the same tree, gate, set-up and environment, and to have allowed nothing that this one does not."""
    runs = tmp_path / "runs"
    gate = f"echo run >> {runs}"

    def count(*, recent=3600.0, gate=gate, environ=None, **options):
        _, lines = run(world, gate, recent=recent, environ=environ, **options)
        return len(runs.read_text().splitlines()), lines[-1]

    assert count() == (1, f"pre-flight: gate on main ({world.start[:10]})")
    assert count() == (1, f"pre-flight: gate on main ({world.start[:10]}) passed 0s ago; not repeated")
    assert count(recent=0.0)[0] == 2, "only a launch relies on it"
    assert count(gate=f"{gate}; true")[0] == 3
    assert count(setup="true")[0] == 4
    assert count(environ={**os.environ, "LC_TIME": "C.UTF-8"})[0] == 5
    before = count(recent=0.0, allow_foreign_imports=True)[0]
    assert count()[0] == before + 1, "the last one allowed what this one may not"
    assert count()[0] == before + 1
    world.queue.clock.time = lambda: time.time() + 3700
    assert count()[0] == before + 2


def test_no_python_that_a_test_left_in_the_worktree_is_run_outside(world, tmp_path):
    """Seen: a gate that makes its environment itself leaves it in the slot, and the next launch ran its python."""
    ran, slot, site = tmp_path / "ran", tmp_path / "slot", tmp_path / "slot/.venv/lib/python3.11/site-packages"
    site.mkdir(parents=True)
    (slot / ".venv/bin").mkdir()
    (slot / ".venv/bin/python").write_text(f"#!/bin/sh\ntouch {ran}\n")
    (slot / ".venv/bin/python").chmod(0o755)
    (slot / "json.py").write_text(f"open({str(ran)!r}, 'w')\n")
    os.mkfifo(site / "__editable___x.py")
    (site / "a.pth").write_text(f"import os; open({str(ran)!r}, 'w')\n{world.repo}\n")
    for gate in (".venv/bin/python -m pytest", "python3 -m pytest"):
        found = [each for python in pythons(gate, slot, os.environ)
                 for each in foreign_imports(python, [world.repo], slot, {**os.environ, "PYTHONPATH": "."})]
        assert found == ([("modules", world.repo)] if gate.startswith(".") else [])
    assert not ran.exists()
