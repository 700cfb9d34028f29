"""`garrison doctor` and `clean` on real processes, sessions, worktrees and files; decoys must survive."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from garrison.doctor import cleanup
from garrison.doctor.examine import apply_fixes, examine
from garrison.doctor.findings import Finding
from garrison.doctor.fixes import Fix, quarantine_file, rebuild_queue, remove_folder
from garrison.merge import commands
from garrison.merge.config import QueueConfig
from garrison.merge.queue import MergeQueue, pin_ref
from garrison.merge.slots import acquire_slot
from garrison.node.worktree import find_worktrees
from garrison.processes.runtime import Runtime
from garrison.processes.temp_files import remove_abandoned
from garrison.records import run as run_records
from garrison.records import signals
from garrison.records.identity import Identity
from garrison.records.journal import Writer, read_all
from garrison.records.life_lock import LifeLock
from garrison.records.names import Key
from garrison.records.run import Launch
from garrison.records.signals import Signal
from garrison.run.status import run_statuses
from garrison.sandbox import private_files
from garrison.system import processes
from garrison.system.git import Git
from garrison.system.tmux import TmuxTerminal
from garrison.system.tmux_server import supported_version
from garrison.values import replace
from support import DEADLINE, Node, Place, git

AT = "2026-01-01T00:00:00.000000Z"


class Home:
    """A home in which tests leave things behind."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.runtime = Runtime.real(place.home, {**place.env, "GARRISON_SWEEP_GRACE": "0.3"})
        self.git = Git(place.repo)
        self.key = self.git.key
        self.children: list[subprocess.Popen[bytes]] = []

    def run(self, run: str, *statuses: str) -> Launch:
        launch = Launch(run, "crew", str(self.place.repo), "main", AT, str(self.place.trees))
        run_records.save(self.runtime.files(run).launch, launch)
        journal = Writer(self.runtime.files(run).journal, "t")
        for status in statuses:
            journal.append("run", {"status": status}, AT)
        journal.close()
        return launch

    def identity(self, role: str, name: str, run: str, **changes: Any) -> Key:
        key, where = Key(role, name, run), self.runtime.observer.machine
        changes = {"host": where.host, "boot_id": where.boot_id, "pid_ns": where.pid_ns, **changes}
        self.runtime.store.update(Identity, key, lambda _: Identity("id", role, name, run, AT, **changes))
        return key

    def child(self, marker: str, *, ignores_term: bool = False) -> subprocess.Popen[bytes]:
        script = f"{'trap : TERM; ' if ignores_term else ''}while :; do sleep 0.05; done"
        child = subprocess.Popen(["sh", "-c", script], env={"PATH": os.environ["PATH"], "GARRISON_LIFE": marker},
                                 start_new_session=True)
        self.children.append(child)
        return child

    def tree(self, run: str, node: str) -> Path:
        path = self.place.trees / self.key / run / node
        self.git.add_worktree(path, f"garrison/{run}/{node}", "main")
        return path

    def gate_logs(self, run: str) -> list[Path]:
        """Return new logs of the gates of a pre-flight and of a cancelled entry."""
        queue = MergeQueue(self.place.home, self.place.repo)
        entry = queue.enqueue(run, "a", 1, f"garrison/{run}/a").id
        commands.cancel(queue, entry, "not wanted")
        self.git.delete_refs([pin_ref(entry, "head")])  # as a processor would
        made = [queue.folder / "logs" / name for name in (f"preflight-{run}.log", f"{entry}.1.log")]
        for path in made:
            path.parent.mkdir(exist_ok=True)
            path.write_text("ok\n")
        return made

    def examine(self, *, fix: bool = False) -> list[Finding]:
        findings = examine(self.runtime, None, time.sleep)
        return apply_fixes(self.runtime, findings) if fix else findings

    def problems(self, check: str, *, fix: bool = False) -> list[tuple[str, str]]:
        """Return (remedy, outcome) of the problems that one check finds."""
        return [(finding.remedy, finding.outcome) for finding in self.examine(fix=fix)
                if finding.check == check and finding.severity != "note"]


@pytest.fixture
def home(place: Place) -> Iterator[Home]:
    home = Home(place)
    yield home
    for child in home.children:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
        child.wait(DEADLINE)


def state(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """Return every file below a folder with its bytes, mode and time of change; but not what is remembered of this
    machine's sandboxes in the user's state directory."""
    return {str(path): (path.read_bytes() if path.is_file() and not path.is_symlink() else b"", path.lstat().st_mode,
                        path.lstat().st_mtime_ns) for path in sorted(folder.rglob("*"))
            if not path.is_socket() and not path.name.startswith(("sandbox.json", private_files.FILE))}


def dead() -> tuple[int, int]:
    """Return pid and start ticks of a process that is gone."""
    child = subprocess.Popen(["true"])
    info = processes.probe(child.pid)
    child.wait()
    return child.pid, info.ticks if info else 1


def test_identities_whose_processes_are_gone_are_fenced(home: Home) -> None:
    pid, ticks = dead()
    home.run("r1", "running", "stopped")
    stale = home.identity("runner", "a", "r1", pid=pid, start_ticks=ticks)
    lapsed = home.identity("runner", "b", "r1", pid=pid, start_ticks=ticks, status="starting", spawn_deadline=AT)
    me = processes.probe(os.getpid())
    living = home.identity("runner", "c", "r1", pid=me.pid, start_ticks=me.ticks)
    elsewhere = home.identity("runner", "d", "r1", pid=pid, start_ticks=ticks, pid_ns="pid:[1]")
    lock = LifeLock.try_acquire(home.runtime.store.life_path(elsewhere))
    assert (home.problems("identities"), home.problems("leases")) == ([("fence", "")], [("fence", "")])
    home.examine(fix=True)
    lock.release()
    statuses = {key: home.runtime.store.get(Identity, key).status for key in (stale, lapsed, living, elsewhere)}
    assert statuses == {stale: "crashed", lapsed: "crashed", living: "active", elsewhere: "active"}


def test_orphans_are_ended_and_other_processes_are_not(home: Home, tmp_path: Path) -> None:
    home.run("r1", "running", "done")
    home.identity("runner", "a", "r1", status="terminated", incarnation=2)
    here = str(home.place.home)
    orphans = [home.child(f"{here}:r1:runner-a#2"), home.child(f"{here}:r1:runner-a#1", ignores_term=True),
               home.child(f"{here}:gone:runner-x#1")]
    me = home.child(f"{here}:r1:orchestrator-a#4")
    info = processes.probe(me.pid)
    home.identity("orchestrator", "a", "r1", pid=me.pid, start_ticks=info.ticks, incarnation=4)
    decoys = [me, home.child(f"{here}2:r1:runner-a#1"), home.child(f"{tmp_path}:r1:runner-a#1"), home.child("nonsense")]
    assert home.problems("orphans") == [("sweep", "")] * 3
    assert home.problems("orphans", fix=True) == [("sweep", "fixed")] * 3
    assert [child.wait(DEADLINE) for child in orphans] == [-signal.SIGTERM, -signal.SIGKILL, -signal.SIGTERM]
    assert [child.poll() for child in decoys] == [None] * 4
    assert home.problems("orphans") == []


def test_sessions_of_dead_processes_are_closed_on_our_own_server_only(home: Home, tmp_path: Path) -> None:
    if supported_version() is None:
        pytest.skip("no tmux >= 3.2 here")
    home.run("r1", "running", "failed")
    terminal = TmuxTerminal(home.place.home)
    env = {"PATH": os.environ["PATH"]}
    socket = tmp_path / "decoy.sock"
    subprocess.run(["tmux", "-S", str(socket), "-f", "/dev/null", "new-session", "-d", "-s", "orchestrator-a@r1",
                    "sleep 300"], check=True, env=env)
    try:
        terminal.open("orchestrator-a@r1", ["sleep", "300"], env=env, cwd=tmp_path, log=tmp_path / "log")
        assert home.problems("sessions") == [("close", "")]
        assert home.problems("sessions", fix=True) == [("close", "fixed")]
        assert terminal.sessions() == []
        for run in ("r1", "r2"):
            home.run(run, "running", "failed")
            terminal.open(f"orchestrator-a@{run}", ["sleep", "300"], env=env, cwd=tmp_path, log=tmp_path / "log")
        done = home.place.command("clean", "--run", "r1", "--yes")
        assert done.returncode == 0, done.stderr
        assert [session.name for session in terminal.sessions()] == ["orchestrator-a@r2"]
        decoys = subprocess.run(["tmux", "-S", str(socket), "list-sessions", "-F", "#{session_name}"], check=True,
                                capture_output=True, text=True, env=env).stdout
        assert decoys == "orchestrator-a@r1\n"
    finally:
        subprocess.run(["tmux", "-S", str(socket), "kill-server"], check=False, env=env)
        for session in terminal.sessions():
            terminal.close(session)
        terminal.shutdown()


def test_worktrees_slots_locks_and_registrations(home: Home) -> None:
    home.run("over", "running", "done")
    home.run("rests", "running", "stopped")
    left, resting = home.tree("over", "a"), home.tree("rests", "b")
    (left / "work").write_text("w\n")
    (resting / "work").write_text("w\n")
    own = home.git.git_dir(resting)
    (own / "index.lock").touch()
    (home.place.repo / ".git/index.lock").touch()
    (home.place.repo / ".git/packed-refs.lock").touch()
    for lock in (own / "index.lock", home.place.repo / ".git/index.lock", home.place.repo / ".git/packed-refs.lock"):
        os.utime(lock, (1, 1))
    assert home.problems("worktrees") == [("give_back", "")]
    assert home.problems("locks") == [("unlock", ""), ("unlock_refs", "")]
    home.examine(fix=True)
    assert not left.exists()
    assert git(home.place.repo, "show", "refs/garrison/rescue/over/a/1:work") == "w"
    assert (resting / "work").exists(), "a run that can continue keeps its worktrees"
    assert not (own / "index.lock").exists()
    assert not (home.place.repo / ".git/packed-refs.lock").exists()
    assert (home.place.repo / ".git/index.lock").exists(), "the lock of the user's own checkout"
    (home.place.repo / ".git/index.lock").unlink()
    home.run("rests", "done")
    shutil.rmtree(resting)
    acquire_slot(home.git, home.place.trees / home.key).release()
    assert home.problems("worktrees", fix=True) == [("unregister", "fixed")]
    assert home.problems("slots") == []
    assert find_worktrees(home.git, home.runtime.launch("rests")) == []
    assert [tree.path for tree in home.git.worktrees()] == [home.place.repo]


def test_torn_foreign_and_newer_files(home: Home) -> None:
    home.run("r1", "running", "stopped")
    files, here = home.runtime.files("r1"), home.place.home
    files.graph.write_text(home.place.graph(Node("a")).read_text())
    keys = [home.identity("runner", name, "r1", status="terminated") for name in ("torn", "held", "newer")]
    torn, held, newer = (home.runtime.store.path(Identity, key) for key in keys)
    for path in (torn, held):
        path.write_bytes(path.read_bytes()[:50])
    newer.write_text(json.dumps({"schema": 99}))
    lock = LifeLock.try_acquire(home.runtime.store.life_path(keys[1]))
    (here / "identities" / "shopping list.json").write_text("milk")
    half = here / "identities" / ".runner-x@r1.json.4194303-1.tmp"
    gone = here / "identities" / "runner-x@gone.json"
    for path in (half, gone):
        path.write_text("{")
    journal = files.process_journal("runner-torn")
    writer = Writer(journal, "t")
    for number in range(3):
        writer.append("note", {"n": number}, AT)
    writer.close()
    for path in (journal, files.journal):
        path.write_bytes(path.read_bytes().replace(b"seq", b"SEQ", 1))
    before = {path: path.read_bytes() for path in (held, newer)}
    moved = {finding.fix for finding in home.examine() if finding.remedy == "quarantine"}
    assert moved == {quarantine_file(half), quarantine_file(gone)}
    findings = [finding for finding in home.examine(fix=True) if finding.check == "files"]
    lock.release()
    assert sorted((finding.outcome, finding.severity) for finding in findings) == [
        ("", "error")] * 2 + [("", "note")] + [("fixed", "error")] * 4 + [("fixed", "warning")]
    assert not half.exists() and not gone.exists()
    rebuilt = home.runtime.store.get(Identity, keys[0])
    assert (rebuilt.status, rebuilt.metadata["class"]) == ("crashed", "damage")
    assert [entry.data["n"] for entry in read_all(journal)] == [1, 2], "what could be read"
    assert [entry.kind for entry in read_all(files.journal)] == ["snapshot", "launch", "note"]
    assert len(list((here / "quarantine").iterdir())) == 5
    assert {path: path.read_bytes() for path in before} == before


def test_unknown_and_invalid_settings_in_config_toml_are_found(home: Home) -> None:
    config = home.place.home / "config.toml"
    home.place.home.mkdir(parents=True, exist_ok=True)
    for text, found in (
        ('[agents.a]\nargv = ["sh"]\n', []),
        ('[agents.a]\nargv = ["sh"]\ncolour = 1\nsucess = 1\n',
         [("warning", ":3: [agents.a] colour"), ("error", ":4: [agents.a] sucess")]),
        ('[agents.a]\nargv = []\n', [("error", "argv=[] should be a list of strings that starts")]),
        ("[agents", [("error", "is not TOML")]),
        ("[chat]\nbudget = 0\n", [("error", "budget=0 should be a number above 0")]),
    ):
        config.write_text(text)
        findings = [finding for finding in home.examine() if finding.check == "config"]
        assert [finding.severity for finding in findings] == [severity for severity, _ in found]
        assert all(words in finding.text for finding, (_, words) in zip(findings, found, strict=True))


def test_signals_for_runs_that_are_over_or_gone(home: Home) -> None:
    for run, status in (("over", "done"), ("rests", "stopped")):
        home.run(run, "running", status)
        signals.post(home.place.home, Signal("i", {"role": "runner", "name": "a", "incarnation": 1},
                                             {"role": "guardian", "name": "crew"}, "NODE_COMPLETE", run, AT, "a", 1))
    home.identity("runner", "a", "byhand")
    for name in ("runner-a@gone", "runner-a@byhand", "runner-a"):
        inbox = home.place.home / "signals" / name
        inbox.mkdir(parents=True)
        (inbox / "20260101T000000000000-000001Z-guardian-runner-GUIDANCE-x.json").write_text("{}")
    assert home.problems("signals", fix=True) == [("refuse", "fixed")] * 2
    assert signals.list_pending(home.place.home, Key("guardian", "crew", "over")) == []
    assert len(signals.list_pending(home.place.home, Key("guardian", "crew", "rests"))) == 1
    assert {path.parent.parent.name for path in home.place.home.glob("signals/*/refused/*.json")} == {
        "guardian-crew@over", "runner-a@gone"}


def test_world_writable_files_are_restricted(home: Home) -> None:
    home.run("r1", "running", "done")
    config = home.place.home / "config.toml"
    config.touch()
    assert home.problems("files") == []
    for path in (home.place.home, home.place.home / "runs", config):
        path.chmod(0o777)
    assert home.problems("files", fix=True) == [("close_home", "fixed"), *[("close_off", "fixed")] * 2]
    assert home.place.home.stat().st_mode & 0o777 == 0o700
    assert [oct(path.stat().st_mode)[-3:] for path in (home.place.home / "runs", config)] == ["775", "775"]
    assert home.problems("files") == []


@pytest.mark.smoke
def test_an_examination_changes_nothing_and_its_exit_code_shows_problems(home: Home) -> None:
    pid, ticks = dead()
    home.run("over", "running", "failed")
    home.identity("runner", "a", "over", pid=pid, start_ticks=ticks)
    home.identity("runner", "b", "over")
    torn = home.runtime.store.path(Identity, Key("runner", "b", "over"))
    torn.write_text("{")
    (home.tree("over", "a") / "work").write_text("w\n")
    before = state(home.place.home), state(home.place.trees), state(home.place.repo)
    done = home.place.command("doctor", "--json")
    assert (state(home.place.home), state(home.place.trees), state(home.place.repo)) == before
    assert done.returncode == 1, done.stderr
    wrong = {finding["check"] for finding in json.loads(done.stdout) if finding["wrong"]}
    assert wrong == {"identities", "files", "worktrees"}
    done = home.place.command("doctor", "--fix")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 repaired" in done.stderr
    done = home.place.command("doctor")
    assert (done.returncode, done.stdout.count("\n")) == (0, 1) and done.stdout.startswith("all is well: "), done.stdout
    told = home.place.command("doctor", "--verbose").stdout
    assert "worktrees" in told and "sandbox: " in told
    home.run("lost", "running")
    done = home.place.command("doctor", "--fix")
    assert done.returncode == 1
    assert "by hand: `garrison up`" in done.stdout


@pytest.mark.slow
def test_clean_removes_finished_runs_never_a_living_one_and_keeps_what_did_not_land(home: Home) -> None:
    place = home.place
    home.run("over", "running", "failed")
    home.run("rests", "running", "stopped")
    for run in ("over", "rests"):
        home.identity("runner", "a", run, status="terminated")
        (home.tree(run, "a") / "work").write_text("w\n")
    home.git.save_commit(git(place.repo, "rev-parse", "main"), "refs/garrison/rescue/over/landed/1")
    home.git.save_commit(git(place.repo, "rev-parse", "main"), "refs/garrison/archive/over/old")
    gates = [home.gate_logs(run) for run in ("over", "rests")]
    before = state(place.home)
    done = place.command("clean", "--all-done", "--dry-run", "--json")
    assert [plan["run"] for plan in json.loads(done.stdout)] == ["over"]
    for words, says in ((("--all-done",), "pass --yes"), (("--run", "rests", "--yes"), "resume rests"),
                        (("--run", "nobody", "--yes"), "no run nobody")):
        done = place.command("clean", *words)
        assert (done.returncode, says in done.stderr) == (1, True), done.stderr
    assert place.command("clean").returncode == place.command("clean", "--all-done", "--force").returncode == 2
    assert state(place.home) == before
    done = place.command("clean", "--all-done", "--rescues", "--yes")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "removed over\n"
    assert not [path for path in state(place.home) if "@over" in path or "/over" in path]
    assert [[path.exists() for path in logs] for logs in gates] == [[False, False], [True, True]]
    assert sorted(git(place.repo, "for-each-ref", "--format=%(refname)").splitlines()) == [
        "refs/garrison/archive/over/a", "refs/garrison/archive/over/old", "refs/garrison/rescue/over/a/1",
        "refs/heads/garrison/rests/a", "refs/heads/main"]
    done = place.command("clean", "--run", "rests", "--force", "--yes")
    assert done.returncode == 0, done.stderr
    assert git(place.repo, "show", "refs/garrison/rescue/rests/a/1:work") == "w"
    assert list(place.trees.rglob("*")) == []
    home.run("r1", "running", "done")
    me = processes.probe(os.getpid())
    home.identity("runner", "a", "r1", pid=me.pid, start_ticks=me.ticks)
    done = place.command("clean", "--run", "r1", "--force", "--yes")
    assert (done.returncode, "garrison stop r1" in done.stderr) == (1, True)
    assert home.runtime.files("r1").launch.exists()


def test_an_interrupted_removal_leaves_no_half_of_a_run(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen to leave a graph without a record: a run unknown to every command, which no check found."""
    home.run("over", "running", "failed")
    plan = cleanup.plan_cleanup(home.runtime, run_statuses(home.runtime)["over"], cleanup.CleanupOptions())
    rmtree = shutil.rmtree

    def interrupted_rmtree(path: Path, **options: Any) -> None:
        if path.exists():
            raise KeyboardInterrupt
        rmtree(path, **options)

    def half_removed() -> list[Fix | None]:
        return [finding.fix for finding in home.examine() if finding.check == "files"]

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", interrupted_rmtree)
        cleanup.remove_run(home.runtime, plan)
    assert run_records.list_runs(home.place.home) == []
    aside, = (home.place.home / "runs").iterdir()
    assert not half_removed()
    remove_abandoned(home.place.home, time.time() + 60)
    assert aside.exists(), "its remover still runs"
    left = aside.rename(aside.with_name(".over.4194303.tmp"))
    assert half_removed() == [remove_folder(left)]
    remove_abandoned(home.place.home, time.time() - 60)
    assert left.exists(), "its remover may be in another pid namespace"
    copy = shutil.copytree(left, left.with_name(".again.4194303.tmp"))
    remove_abandoned(home.place.home, time.time() + 60)
    assert not left.exists() and not copy.exists()
    (copy / "more").mkdir(parents=True)
    assert home.examine(fix=True)
    assert not copy.exists() and not (home.place.home / "quarantine").exists()
    (begun := left.with_name("begun-1")).mkdir()
    assert not half_removed(), "a launch may be making it"
    os.utime(begun, (0, 0))
    assert half_removed() == [remove_folder(begun)]


@pytest.mark.parametrize("by", ["garrison doctor", "merge-queue doctor"])
def test_a_rebuilt_queue_has_the_gate_of_its_latest_run_again(home: Home, by: str) -> None:
    """Without it a processor takes the new journal for one that was lost, and rebuilds it again."""
    for run, gate, at in (("r1", "make old", AT), ("r2", "make test", AT.replace("2026", "2027"))):
        launch = replace(home.run(run, "running"), gate=gate, created_at=at)
        run_records.save(home.runtime.files(run).launch, launch)
    queue = MergeQueue(home.place.home, home.place.repo)
    queue.configure(QueueConfig("make test"))
    queue.path.write_bytes(b"\xff garbage\n")
    if by == "garrison doctor":
        rebuild_queue(queue).apply(home.runtime)
    else:
        done = home.place.command("merge-queue", "doctor", "--repo-root", home.place.repo, "--target", "main")
        assert "rebuilt the journal" in done.stdout and "configuration is lost" not in done.stdout, done.stdout
    config = MergeQueue(home.place.home, home.place.repo).state.config
    assert config is not None and config.gate == "make test"
