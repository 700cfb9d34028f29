"""The scripts and `garrison` as black boxes, each test in its own home.

A command runs in this process, by the function that its script calls, as the first test checks; tests of processes
use real ones.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from garrison.cli import hooks, identities
from garrison.cli import main as cli
from garrison.cli import signals as cli_signals
from garrison.errors import GarrisonError
from garrison.records import run as run_records
from garrison.records import signals
from garrison.records.hook import Hook
from garrison.records.identity import Identity
from garrison.records.journal import Writer
from garrison.records.names import Key, format_marker, launcher_key
from garrison.records.run import Launch, Result, RunFiles
from garrison.records.store import Store
from garrison.system import processes
from garrison.system.clock import from_iso
from garrison.system.process_control import RealProcesses
from garrison.system.terminal import ProcessTerminal
from garrison.values import asdict
from support import DEADLINE

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
OLD = "2026-01-31T12:00:00.000000Z"
MAINS: dict[str, Callable[[list[str]], int]] = {
    "identity_registry.py": identities.main, "hook_manager.py": hooks.main, "signal_protocol.py": cli_signals.main,
    "cli.py": cli.main, "agents_cmd.py": lambda words: cli.main(["agents", *words])}
BARE = next((path for path in ("/usr/bin/python3", "/bin/python3") if Path(path).exists()), None)
needs_bare = pytest.mark.skipif(BARE is None, reason="there is no bare python3 on this machine")


class Box:
    """A home and the environment in which scripts are run on it."""

    def __init__(self, tmp_path: Path) -> None:
        self.home = tmp_path / "home"
        self.store = Store(self.home)
        kept = {name: value for name, value in os.environ.items() if name == "PATH" or name.startswith("COVERAGE")}
        self.env = {**kept, "HOME": str(tmp_path), "GARRISON_HOME": str(self.home)}

    def run(self, script: str, *args: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run the command of a script in this process, with this environment alone, and from nowhere."""
        words, (out, err) = list(map(str, args)), (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
        with (mock.patch.dict(os.environ, {**self.env, **(env or {})}, clear=True), contextlib.chdir("/"),
              contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)):
            code = MAINS[script](words)
        return subprocess.CompletedProcess(words, code, *(each.buffer.getvalue().decode() for each in (out, err)))

    def start(self, script: str, *args: object, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a script in its own process."""
        return subprocess.run([sys.executable, str(SCRIPTS / script), *map(str, args)], env={**self.env, **env},
                              cwd="/", capture_output=True, text=True, timeout=DEADLINE, check=False)

    def ok(self, script: str, *args: object, env: dict[str, str] | None = None) -> Any:
        done = self.run(script, *args, env=env)
        assert (done.returncode, done.stderr) == (0, ""), done
        return json.loads(done.stdout)

    def refused(self, script: str, *args: object, code: int = 1, env: dict[str, str] | None = None) -> str:
        """Return the message of a refused command: one JSON line on stderr, with stdout empty."""
        done = self.run(script, *args, env=env)
        assert (done.returncode, done.stdout) == (code, ""), done
        assert done.stderr.count("\n") == 1, done.stderr
        body = json.loads(done.stderr)
        assert body["status"] == "error"
        return str(body["message"])

    def cli(self, *args: object, code: int = 0) -> str:
        done = self.run("cli.py", *args)
        assert done.returncode == code, done
        assert "Traceback" not in done.stderr
        return done.stdout if code == 0 else done.stderr

    def identity(self, role: str = "runner", name: str = "a", run: str = "", **values: Any) -> Identity:
        made = Identity("id", role, name, run, OLD, **{"last_heartbeat": OLD, **values})
        return self.store.update(Identity, made.key, lambda _: made)

    def living(self, role: str, name: str, run: str, process: Sleeper, **values: Any) -> Identity:
        where = RealProcesses().here()
        return self.identity(role, name, run, pid=process.pid, start_ticks=process.ticks, host=where.host,
                             boot_id=where.boot_id, pid_ns=where.pid_ns, **values)

    def launched(self, run: str, **values: Any) -> RunFiles:
        files = RunFiles(self.home, run)
        values = {"pipeline_id": "p", "repo": "/repo", "base": "main", "created_at": OLD, "trees": "/trees", **values}
        run_records.save(files.launch, Launch(run, **values))
        return files


class Sleeper:
    """A child process that stands in for an incarnation."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL)
        self.pid = self._process.pid
        found = processes.probe(self.pid)
        self.ticks = found.ticks

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


@pytest.fixture
def sleeper() -> Iterator[Callable[[], Sleeper]]:
    made: list[Sleeper] = []

    def make() -> Sleeper:
        made.append(Sleeper())
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.mark.parametrize("script", sorted(path.name for path in SCRIPTS.glob("[a-z]*.py") if path.name != "demo.py"))
def test_every_script_is_its_command_and_has_help(box: Box, script: str) -> None:
    assert os.access(SCRIPTS / script, os.X_OK)
    done = box.start(script, "--help")
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout.lower()
    if script in MAINS:
        assert box.run(script, "--help").stdout == done.stdout


# --------------------------------------------------------------------------------------------------------- identities


def test_every_command_shows_the_heartbeat_of_the_life_file_if_it_is_later_than_the_recorded_one(box: Box) -> None:
    beat = "2026-02-03T04:05:06.000000Z"
    for name, recorded in (("a", OLD), ("b", "2026-05-01T00:00:00.000000Z")):
        made = box.identity(name=name, last_heartbeat=recorded)
        life = box.store.life_path(made.key)
        life.touch()
        os.utime(life, (5.0, from_iso(beat)))
    box.identity(name="c")
    expected = {"a": beat, "b": "2026-05-01T00:00:00.000000Z", "c": OLD}
    listed = box.ok("identity_registry.py", "list", "--json")
    assert {one["name"]: one["last_heartbeat"] for one in listed} == expected
    stale = box.ok("identity_registry.py", "find-stale")
    assert {one["name"]: one["last_heartbeat"] for one in stale}.items() <= expected.items() and stale
    assert {one["name"]: one["last_heartbeat"] for one in json.loads(box.cli("agents", "list", "--json"))} == expected
    for name, at in expected.items():
        assert box.ok("identity_registry.py", "show", "runner", name)["last_heartbeat"] == at
        assert json.loads(box.cli("agents", "show", "runner", name))["last_heartbeat"] == at
        assert box.ok("identity_registry.py", "mark-crashed", "runner", name)["last_heartbeat"] == at


def test_an_identity_from_creation_to_its_end(box: Box) -> None:
    made = box.ok("identity_registry.py", "create", "runner", "impl_auth", "--session-id", "s", "--worktree", "/w")
    assert {"role": "runner", "name": "impl_auth", "run_id": "", "incarnation": 1, "status": "active",
            "session_id": "s", "worktree": "/w", "pid": None}.items() <= made.items()
    assert (box.home / "identities" / "runner-impl_auth.json").stat().st_mode & 0o777 == 0o600
    beaten = box.ok("identity_registry.py", "update-liveness", "runner", "impl_auth")
    assert beaten["status"] == "ok"
    assert beaten["last_heartbeat"] > made["last_heartbeat"]
    assert box.ok("identity_registry.py", "show", "runner", "impl_auth")["last_heartbeat"] == beaten["last_heartbeat"]
    assert [one["name"] for one in box.ok("identity_registry.py", "list", "--json")] == ["impl_auth"]
    crashed = box.ok("identity_registry.py", "mark-crashed", "runner", "impl_auth")
    assert crashed["status"] == "crashed"
    assert box.ok("identity_registry.py", "mark-crashed", "runner", "impl_auth") == crashed
    assert "does not revive" in box.refused("identity_registry.py", "update-liveness", "runner", "impl_auth")
    ended = box.ok("identity_registry.py", "mark-terminated", "runner", "impl_auth")
    assert ended["status"] == "terminated"
    assert "cannot go from terminated" in box.refused("identity_registry.py", "mark-crashed", "runner", "impl_auth")


@pytest.mark.parametrize(("command", "status"), [("mark-crashed", "crashed"), ("mark-terminated", "terminated")])
def test_the_end_of_a_living_process_is_recorded_only_with_its_end(box: Box, sleeper: Callable[[], Sleeper],
                                                                   command: str, status: str) -> None:
    process = sleeper()
    box.ok("identity_registry.py", "create", "runner", "impl_auth", "--pid", str(process.pid))
    refused = box.refused("identity_registry.py", command, "runner", "impl_auth")
    assert f"pid {process.pid}" in refused and "--kill" in refused
    assert box.ok("identity_registry.py", "show", "runner", "impl_auth")["status"] == "active"

    ended = box.ok("identity_registry.py", command, "runner", "impl_auth", "--kill")
    assert (ended["status"], ended["incarnation"], ended["metadata"]["reason"]) == (status, 1, "marked by hand")
    assert not processes.is_running(process.pid, process.ticks)
    assert box.ok("identity_registry.py", command, "runner", "impl_auth", "--kill") == ended


def test_a_process_registered_by_hand_may_record_its_own_end(box: Box) -> None:
    box.ok("identity_registry.py", "create", "orchestrator", "a", "--pid", str(os.getpid()))
    ended = box.start("identity_registry.py", "mark-terminated", "orchestrator", "a")  # by a child of that process
    assert json.loads(ended.stdout)["status"] == "terminated", ended


def test_unknown_names_and_usage_errors_go_to_stderr_and_create_nothing(box: Box, tmp_path: Path) -> None:
    for command in ("update-liveness", "show", "mark-crashed", "mark-terminated"):
        assert "runner nobody" in box.refused("identity_registry.py", command, "runner", "nobody")
    for arguments in (("show", "runer", "a"), ("frobnicate",), (), ("create", "runner"), (
            "create", "runner", "a", "--pid", "0"), *(("find-stale", "--timeout", text) for text in (
                "-1", "nan", "inf", "soon"))):
        done = box.run("identity_registry.py", *arguments)
        assert (done.returncode, done.stdout, bool(done.stderr)) == (2, "", True), arguments
    assert "not a name" in box.refused("identity_registry.py", "create", "runner", "../../x", code=2)
    assert "not a run id" in box.refused("identity_registry.py", "create", "runner", "x", "--run", "R 1", code=2)
    before, after = (["--home", tmp_path / name] for name in ("before", "after"))
    box.ok("identity_registry.py", *before, "create", "runner", "a")
    box.ok("identity_registry.py", "create", "runner", "a", *after)
    assert all((tmp_path / name / "identities/runner-a.json").exists() for name in ("before", "after"))
    assert not box.home.exists(), "asking made something"


def test_create_refuses_a_living_incarnation_and_succeeds_a_dead_one(box: Box, sleeper: Callable[[], Sleeper]) -> None:
    process = sleeper()
    first = box.ok("identity_registry.py", "create", "runner", "a", "--pid", process.pid, "--run", "r1")
    assert first["start_ticks"] == process.ticks
    assert "is alive" in box.refused("identity_registry.py", "create", "runner", "a", "--run", "r1")
    box.ok("hook_manager.py", "create", "runner", "a")
    box.ok("hook_manager.py", "update-phase", "runner", "a", "executing")
    process.end()
    second = box.ok("identity_registry.py", "create", "runner", "a", "--run", "r1")
    assert (second["incarnation"], second["predecessor_id"], second["respawns"]) == (2, first["agent_id"], 1)
    hook = box.ok("hook_manager.py", "read", "runner", "a")
    assert (hook["incarnation"], hook["phase"]) == (2, "executing")
    assert hook["predecessor_hook_id"]
    other = box.ok("identity_registry.py", "create", "runner", "a", "--run", "r2")
    assert (other["incarnation"], other["predecessor_id"]) == (1, None), "another run is never a successor"


def test_create_kills_what_a_dead_incarnation_left_running(box: Box) -> None:
    key = Key("runner", "a", "r1")
    here = processes.this_host()
    box.identity(run="r1", pid=4_000_000, start_ticks=1, host=here.host, boot_id=here.boot_id, pid_ns=here.pid_ns)
    left = subprocess.Popen(["sleep", "600"], env={**box.env, processes.MARKER: format_marker(str(box.home), key, 1)})
    try:
        box.ok("identity_registry.py", "create", "runner", "a", "--run", "r1")
        assert left.wait(timeout=DEADLINE) < 0
    finally:
        left.kill()
        left.wait()


@pytest.mark.smoke
def test_find_stale_lists_silent_and_gone_incarnations(box: Box, sleeper: Callable[[], Sleeper]) -> None:
    process = sleeper()
    box.ok("identity_registry.py", "create", "runner", "fresh")
    box.identity(name="silent")
    box.ok("identity_registry.py", "create", "runner", "gone", "--pid", process.pid)
    box.identity(name="over", status="terminated")
    process.end()
    stale = box.ok("identity_registry.py", "find-stale", "--timeout", "300")
    assert {one["name"]: one["stale_reason"] for one in stale} == {"silent": "heartbeat", "gone": "process_gone"}
    assert all({"agent_id", "incarnation", "status", "run_id"} <= one.keys() for one in stale)
    assert {one["name"] for one in box.ok("identity_registry.py", "find-stale", "--timeout", "0")} == {
        "silent", "gone", "fresh"}
    assert {one["name"] for one in box.ok("identity_registry.py", "list", "--json", "--stale-only", "300")} == {
        "silent", "gone"}
    box.ok("identity_registry.py", "update-liveness", "runner", "silent")
    assert [one["name"] for one in box.ok("identity_registry.py", "find-stale")] == ["gone"], "a record is kept alive"


def test_list_as_a_table(box: Box) -> None:
    box.identity(name="silent")
    done = box.run("identity_registry.py", "list")
    head, row = done.stdout.splitlines()
    assert head.split()[:4] == ["NAME", "INCARNATION", "STATUS", "VERDICT"]
    assert row.split()[:4] == ["runner-silent", "1", "active", "dead"]
    assert done.stdout == box.cli("agents", "list")
    assert box.run("identity_registry.py", "list", "--home", box.home.parent / "none").stdout == ""


def test_a_corrupt_record_is_reported_and_the_others_are_listed(box: Box) -> None:
    box.identity(name="whole")
    torn = box.home / "identities" / "runner-torn.json"
    torn.write_text('{"schema": 1, "agent_id"')
    for command in (("identity_registry.py", "find-stale"), ("identity_registry.py", "list", "--json"),
                    ("agents_cmd.py", "list", "--json")):
        done = box.run(*command)
        assert done.returncode == ("find-stale" in command), "cron must not see health"
        assert [one["name"] for one in json.loads(done.stdout)] == ["whole"]
        assert "corrupt" in done.stderr
        assert str(torn) in done.stderr
    assert "corrupt" in box.refused("identity_registry.py", "create", "runner", "torn")
    assert torn.read_text() == '{"schema": 1, "agent_id"', "a reader repaired it"


def test_a_name_without_a_run_is_the_living_one_or_refused(box: Box, sleeper: Callable[[], Sleeper]) -> None:
    box.identity(run="r1", status="terminated")
    box.identity(run="r2", status="terminated")
    message = box.refused("identity_registry.py", "update-liveness", "runner", "a")
    assert message.endswith("choose one with --run: r1, r2")
    box.living("runner", "a", "r2", sleeper())
    box.ok("identity_registry.py", "update-liveness", "runner", "a")
    assert box.store.get(Identity, Key("runner", "a", "r2")).last_heartbeat > OLD
    assert box.ok("identity_registry.py", "show", "runner", "a", "--run", "r1")["run_id"] == "r1"
    assert box.ok("identity_registry.py", "show", "runner", "a", env={"GARRISON_RUN": "r1"})["run_id"] == "r1"
    box.living("runner", "a", "r1", sleeper())
    assert "r1 (at work), r2 (at work)" in box.refused("identity_registry.py", "update-liveness", "runner", "a")


def test_a_fenced_incarnation_writes_nothing(box: Box, sleeper: Callable[[], Sleeper]) -> None:
    key = box.living("runner", "a", "r1", sleeper(), incarnation=3).key
    box.store.update(Hook, key, lambda _: Hook("h", "runner", "a", "r1", OLD, OLD, incarnation=3))
    zombie = {"GARRISON_INCARNATION": "2", "GARRISON_LIFE": format_marker(str(box.home), key, 2), "GARRISON_RUN": "r1"}
    for command in (("identity_registry.py", "update-liveness", "runner", "a"),
                    ("identity_registry.py", "mark-crashed", "runner", "a"),
                    ("hook_manager.py", "update-phase", "runner", "a", "executing"),
                    ("hook_manager.py", "update-resumption", "runner", "a", "notes")):
        assert "later incarnation" in box.refused(*command, env=zombie)
        assert "later incarnation" in box.refused(*command, "--incarnation", "2")
    assert box.store.get(Identity, key).last_heartbeat == OLD
    assert box.store.get(Hook, key).updated_at == OLD
    box.ok("identity_registry.py", "update-liveness", "runner", "a", env={**zombie, "GARRISON_INCARNATION": "3"})
    box.ok("hook_manager.py", "update-phase", "runner", "a", "executing", "--incarnation", "3")


# -------------------------------------------------------------------------------------------------------------- hooks


def test_a_hook_through_its_phases(box: Box) -> None:
    made = box.ok("hook_manager.py", "create", "runner", "a")
    assert (made["phase"], made["incarnation"]) == ("planning", 1)
    for phase in ("executing", "impl_complete", "executing", "impl_complete", "validating", "merged"):
        assert box.ok("hook_manager.py", "update-phase", "runner", "a", phase)["phase"] == phase
    read = box.ok("hook_manager.py", "read", "runner", "a")
    assert [step["to"] for step in read["phase_history"]].count("executing") == 2
    assert read["merged_at"]
    message = box.refused("hook_manager.py", "update-phase", "runner", "a", "executing")
    assert "merged" in message
    assert "not a phase" in box.refused("hook_manager.py", "update-phase", "runner", "a", "done", code=2)
    assert box.ok("hook_manager.py", "read", "runner", "a") == read, "a refused step changed the hook"
    box.ok("hook_manager.py", "create", "runner", "c", "--phase", "executing")
    assert "impl_complete" in box.refused("hook_manager.py", "update-phase", "runner", "c", "merged")
    assert "not a phase" in box.refused("hook_manager.py", "create", "runner", "b", "--phase", "done", code=2)
    for command in (("read",), ("wisdom",), ("update-phase", "executing"), ("update-resumption", "x")):
        box.refused("hook_manager.py", command[0], "runner", "nobody", *command[1:])


def test_notes_appear_in_the_wisdom_block(box: Box) -> None:
    box.ok("hook_manager.py", "create", "orchestrator", "a")
    box.ok("hook_manager.py", "update-phase", "orchestrator", "a", "executing")
    noted = box.ok("hook_manager.py", "update-resumption", "orchestrator", "a", "tests are red",
                   "--last-committed-node", "a1b2c3")
    assert (noted["resumption_instructions"], noted["last_committed_node"]) == ("tests are red", "a1b2c3")
    block = box.run("hook_manager.py", "wisdom", "orchestrator", "a").stdout
    for part in ("RESUMPTION CONTEXT", "SKIP planning phase — go directly to executing", "a1b2c3", "tests are red"):
        assert part in block
    text = "- tests are red\n- a=b is next"
    noted = box.ok("hook_manager.py", "update-resumption", "orchestrator", "a", text, "--last-committed-node", "a1b2c3")
    assert noted["resumption_instructions"] == text, "text with a dash is not an option"
    again = box.run("hook_manager.py", "create", "orchestrator", "a", "--phase", "planning")
    assert "keeps its phase" in again.stderr
    body = json.loads(again.stdout)
    assert (body["phase"], body["predecessor_hook_id"]) == ("executing", noted["hook_id"])


# ---------------------------------------------------------------------------------------------- as the seeds call them


@pytest.fixture
def scripts(box: Box, monkeypatch: pytest.MonkeyPatch) -> Box:
    """Make the scripts importable, as agents' prompts import them."""
    for name, value in box.env.items():
        monkeypatch.setenv(name, value)
    for name in ("GARRISON_RUN", "GARRISON_LIFE", "GARRISON_INCARNATION", "GARRISON_NODE", "GARRISON_ATTEMPT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return box


@pytest.mark.smoke
def test_identities_and_hooks_under_the_seeds_names(scripts: Box) -> None:
    import hook_manager
    import identity_registry

    made = identity_registry.create_identity(role="runner", name="impl_auth", session_id="s", worktree="/t")
    assert made["worktree"] == "/t"
    assert identity_registry.update_liveness("runner", "impl_auth")["status"] == "active"
    assert identity_registry.find_stale(timeout=300) == []
    assert [one["name"] for one in identity_registry.list_all()] == ["impl_auth"]
    assert hook_manager.read_hook("runner", "impl_auth") is None
    hook = hook_manager.create_hook(role="runner", name="impl_auth", phase="planning")
    assert hook_manager.read_hook("runner", "impl_auth") == hook
    assert hook_manager.update_phase("runner", "impl_auth", "executing")["phase"] == "executing"
    moved = hook_manager.update_resumption("runner", "impl_auth", "notes", last_committed_node="x")
    assert "notes" in hook_manager.build_wisdom_prompt_block(moved)
    assert identity_registry.mark_crashed("runner", "impl_auth")["status"] == "crashed"
    assert identity_registry.mark_terminated("runner", "impl_auth")["status"] == "terminated"
    assert json.loads(json.dumps(moved)) == moved


def test_the_originals_calls_with_its_keywords(scripts: Box, tmp_path: Path) -> None:
    """As its own tests call them: a folder of records each, `timeout_seconds`, `read_identity`, its longer names."""
    import hook_manager
    import identity_registry

    records = str(tmp_path / "other/identities")
    identity_registry.create_identity("runner", "a", "runner-a", "/tmp", state_dir=records)
    before = identity_registry.read_identity("runner", "a", state_dir=records)
    updated = identity_registry.update_liveness("runner", "a", state_dir=records)
    after = identity_registry.read_identity("runner", "a", state_dir=records)
    assert before["last_heartbeat"] < updated["last_heartbeat"] == after["last_heartbeat"]
    assert identity_registry.find_stale(timeout_seconds=300, state_dir=records) == []
    identity_registry.mark_crashed("runner", "a", state_dir=records)
    assert [each["status"] for each in identity_registry.list_all(state_dir=records)] == ["crashed"]
    assert (tmp_path / "other/identities/runner-a.json").exists() and not scripts.home.exists()
    assert identity_registry.read_identity("runner", "b", state_dir=records) is None

    hooks = str(tmp_path / "other/hooks")
    hook_manager.create_hook(role="runner", name="a", state_dir=hooks)
    for phase in ("executing", "impl_complete", "validating"):
        hook_manager.update_phase("runner", "a", phase, state_dir=hooks)
    hook_manager.update_resumption_instructions("runner", "a", "Resume from step 3", last_committed_node="impl_auth",
                                                state_dir=hooks)
    block = hook_manager.build_wisdom_prompt_block(hook_manager.read_hook("runner", "a", state_dir=hooks))
    assert "SKIP planning phase" in block and "impl_auth" in block and "Resume from step 3" in block
    assert hook_manager.mark_merged("runner", "a", state_dir=hooks)["merged_at"]

    linked = identity_registry.create_identity("runner", "c", "s", "/tmp", predecessor_id="runner-c-1",
                                               metadata={"key": 1}, state_dir=records)
    assert (linked["predecessor_id"], linked["metadata"]) == ("runner-c-1", {"key": 1})
    begun = hook_manager.create_hook("runner", "c", predecessor_hook_id="h", state_dir=hooks)
    assert begun["predecessor_hook_id"] == "h"
    assert set(hook_manager.VALID_PHASES) > {"planning", "merged"}
    with pytest.raises(FileNotFoundError, match="runner nobody"):
        identity_registry.mark_crashed("runner", "nobody", state_dir=records)
    with pytest.raises(ValueError, match="phase"):
        hook_manager.create_hook("runner", "d", phase="done", state_dir=hooks)
    given = {"state_dir": records, "timeout_seconds": 5}
    assert identity_registry.list_all(**given) and hook_manager.read_hook("runner", "a", **given)
    written = Path(records, "runner-c.json")
    for time in ("2026-02-27T10:00:00Z", "2026-02-27T10:00:00.123456789Z"):
        written.write_text(json.dumps({**json.loads(written.read_text()), "last_heartbeat": time}))
        assert [each["name"] for each in identity_registry.find_stale(timeout_seconds=300, state_dir=records)] == ["c"]
    written.write_text("{")
    with pytest.raises(json.JSONDecodeError, match="corrupt"):
        identity_registry.read_identity("runner", "c", state_dir=records)


def test_quiet_prints_only_the_status(box: Box) -> None:
    for words in (("identity_registry.py", "-q", "create", "guardian", "p"),
                  ("identity_registry.py", "update-liveness", "guardian", "p", "-q"),
                  ("hook_manager.py", "-q", "create", "guardian", "p"),
                  ("signal_protocol.py", "-q", "write", "runner-a", "guardian-p", "MERGE_READY")):
        assert box.run(*words).stdout == '{"status": "ok"}\n', words
    heard = box.ok("signal_protocol.py", "wait", "guardian-p", "--timeout", "0")
    assert heard["target"]["name"] == "p"


def test_the_originals_signals_in_a_folder_of_ones_own(scripts: Box, tmp_path: Path) -> None:
    import signal_protocol

    place = str(tmp_path / "signals of mine")
    assert signal_protocol.list_signals(signals_dir=place) == []
    paths = [signal_protocol.write_signal("runner", "guardian", signal_type, {"node_id": "a"}, signals_dir=place)
             for signal_type in ("NEEDS_REVIEW", "NEEDS_REVIEW", signal_protocol.AGENT_CRASHED)]
    signal_protocol.write_agent_registered("id", "runner", "a", "s", "/t", signals_dir=place)
    assert signal_protocol.list_signals("guardian", place)[:3] == paths, "none replaced another of the same second"
    assert signal_protocol.read_signal(Path(paths[0]).name, signals_dir=place)["source"] == "runner"
    taken = signal_protocol.wait_for_signal("guardian", timeout=1, signals_dir=place, poll_interval=0.01)
    assert (taken["signal_type"], taken["payload"]) == ("NEEDS_REVIEW", {"node_id": "a"})
    assert Path(signal_protocol.move_to_processed(paths[1])).parent == Path(place, "processed")
    with pytest.raises(TimeoutError):
        signal_protocol.wait_for_signal("runner", timeout=0, signals_dir=place)
    with pytest.raises(FileNotFoundError):
        signal_protocol.read_signal(paths[0])
    with pytest.raises(ValueError, match="not a name"):
        signal_protocol.write_signal("../x", "guardian", "HELLO", signals_dir=place)
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(json.JSONDecodeError):
        signal_protocol.read_signal(tmp_path / "bad.json")
    assert not scripts.home.exists()


@pytest.mark.smoke
def test_signals_under_the_seeds_names(scripts: Box) -> None:
    import signal_protocol

    scripts.launched("r1", pipeline_id="demo")
    scripts.identity("guardian", "demo", "r1")
    (scripts.home / "runs" / "r1" / "nodes" / "impl_auth" / "2").mkdir(parents=True)
    path = signal_protocol.write_signal("guardian", "runner", "MERGE_COMPLETE", {"node_id": "impl_auth"})
    assert Path(path).parent == scripts.home / "signals" / "runner-impl_auth@r1"
    body = signal_protocol.read_signal(path)
    assert {"signal_type": "MERGE_COMPLETE", "run_id": "r1", "node_id": "impl_auth",
            "attempt": 2}.items() <= body.items()
    assert body["source"] == {"role": "guardian", "name": "demo", "incarnation": 1}
    signal_protocol.write_signal("runner", "guardian", "MERGE_READY", {"node_id": "impl_auth", "attempt": 7})
    heard = signal_protocol.wait_for_signal("guardian", timeout=1)
    assert (heard["source"]["name"], heard["attempt"]) == ("impl_auth", 7)
    assert signal_protocol.wait_for_signal("guardian", timeout=0) is None, "it was not taken"
    assert signal_protocol.wait_for_signal("runner-impl_auth", timeout=0, types=["GUIDANCE"]) is None
    waited = signal_protocol.wait_for_signal("runner-impl_auth@r1", timeout=0, types=["MERGE_COMPLETE"])
    assert waited == body


def test_wait_leaves_a_living_process_its_signal(scripts: Box, sleeper: Callable[[], Sleeper],
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    import signal_protocol

    key = scripts.living("runner", "a", "r1", sleeper()).key
    signal_protocol.write_signal("guardian", "runner", "GUIDANCE", {"node_id": "a"})
    assert signal_protocol.wait_for_signal("runner-a", timeout=0)
    assert len(signals.list_pending(scripts.home, key)) == 1, "it was stolen from the layer"
    monkeypatch.setenv("GARRISON_LIFE", format_marker(str(scripts.home), key, 1))
    assert signal_protocol.wait_for_signal("runner-a", timeout=0)
    assert signals.list_pending(scripts.home, key) == []


def test_a_signal_with_several_possible_recipients_is_refused(box: Box, sleeper: Callable[[], Sleeper]) -> None:
    for run in ("r1", "r2"):
        box.launched(run)
        box.identity("guardian", "p", run)
    asked = ("signal_protocol.py", "write", "runner-a", "guardian", "NODE_COMPLETE")
    assert "run_id" in box.refused(*asked)
    assert "not a signal type" in box.refused("signal_protocol.py", "write", "runner-a", "guardian", "HELLO", code=2)
    assert box.run(*asked, "--payload", "[1]").returncode == 2
    box.living("guardian", "p", "r2", sleeper())
    done = box.run(*asked, "--payload", '{"node_id": "a"}')
    assert "guardian-p@r2" in done.stdout
    read = box.ok("signal_protocol.py", "read", done.stdout.strip())
    assert read["target"] == {"role": "guardian", "name": "p"}
    waited = box.ok("signal_protocol.py", "wait", "guardian-p@r2", "--timeout", "5", "--type", "NODE_COMPLETE")
    assert waited["id"] == read["id"]
    assert "came within" in box.refused("signal_protocol.py", "wait", "runner-a@r2", "--timeout", "0.1")
    assert "which runner" in box.refused("signal_protocol.py", "write", "guardian", "runner", "GUIDANCE")
    assert "no signal" in box.refused("signal_protocol.py", "read", "/nowhere.json")


@pytest.mark.smoke
def test_merge_queue_under_the_seeds_names(scripts: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import merge_queue

    repo = str(tmp_path / "repo")
    subprocess.run(["git", "init", "-q", "-b", "main", repo], check=True)
    subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", "-C", repo, "commit", "-q", "--allow-empty",
                    "-m", "start"], check=True)
    monkeypatch.chdir(tmp_path / "repo")
    assert merge_queue.process_next() == {"success": True, "entry": {}, "error": None}
    given = {"state_dir": str(scripts.home), "timeout_seconds": 5}
    assert merge_queue.process_next(**given) == {"success": True, "entry": {}, "error": None}
    with pytest.raises(GarrisonError, match="no branch"):
        merge_queue.enqueue(node_id="n", branch="no-such", repo_root=repo, **given)
    assert callable(merge_queue.enqueue)


# ----------------------------------------------------------------------------------------- any Python, any place, bare


@needs_bare
def test_a_bare_python_runs_a_prompts_one_line_program(box: Box) -> None:
    program = (f"import sys; sys.path.insert(0, {str(SCRIPTS)!r})\nfrom hook_manager import read_hook\n"
               "from signal_protocol import write_signal\nprint(read_hook('runner', sys.argv[1]))")
    done = subprocess.run([BARE, "-c", program, "a"], env={"GARRISON_HOME": str(box.home)}, cwd="/",
                          capture_output=True, text=True, check=False, timeout=DEADLINE)
    assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr


@needs_bare
def test_a_bare_python_finds_the_checkout_also_through_a_link_and_by_the_scripts_name(box: Box, tmp_path: Path) -> None:
    link = tmp_path / "bin" / "who"
    link.parent.mkdir()
    link.symlink_to(SCRIPTS / "identity_registry.py")
    for command in ([BARE, SCRIPTS / "identity_registry.py"], [BARE, "-I", link], [BARE, "-P", link],
                    [BARE, "-B", "-s", "-E", link], [link]):
        done = subprocess.run([*command, "list", "--json"], cwd=tmp_path, capture_output=True, text=True, check=False,
                              env={"GARRISON_HOME": str(box.home), "PATH": "/usr/bin:/bin"}, timeout=DEADLINE)
        assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


@needs_bare
def test_a_checkout_that_is_not_set_up_is_reported_in_one_line(tmp_path: Path) -> None:
    scripts = tmp_path / "checkout" / "scripts"
    scripts.mkdir(parents=True)
    for name in ("_script.py", "identity_registry.py"):
        shutil.copy(SCRIPTS / name, scripts / name)

    def call() -> None:
        done = subprocess.run([BARE, "-I", str(scripts / "identity_registry.py"), "list"], env={}, capture_output=True,
                              text=True, check=False, timeout=DEADLINE)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done
        assert str(scripts / "test") in done.stderr

    call()
    (tmp_path / "checkout" / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / "checkout" / ".venv" / "bin" / "python").symlink_to(BARE)
    call()  # a .venv without garrison must not be tried for ever


HEAVY = ("claude_agent_sdk", "starlette", "lark", "rich", "yaml", "anyio", "pydantic", "textual")


CALLS = (("identities", ["find-stale"]), ("identities", ["update-liveness", "runner", "a"]),
         ("hooks", ["read", "runner", "a"]), ("signals", ["wait", "runner-a", "--timeout", "0"]),
         ("main", ["agents", "list"]), ("main", ["--help"]), ("main", ["signals", "list"]))


def test_scripts_import_no_heavy_library(box: Box) -> None:
    """One process makes all calls, and says after which of them something heavy was there."""
    box.identity()
    program = (f"import importlib, sys\nfor room, words in {CALLS!r}:\n"
               "    importlib.import_module(f'garrison.cli.{room}').main(words)\n"
               f"    print('heavy', room, words, sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr)")
    done = subprocess.run([sys.executable, "-c", program], env=box.env, capture_output=True, text=True, check=False,
                          timeout=DEADLINE)
    said = [line for line in done.stderr.splitlines() if line.startswith("heavy")]
    assert len(said) == len(CALLS) and all(line.endswith(" []") for line in said), done.stderr


# ------------------------------------------------------------------------------------------------------- concurrency

_BEATS = """
import sys
from identity_registry import main
sys.stdout = open("/dev/null", "w")
sys.exit(sum(main(["update-liveness", "runner", "a"]) for _ in range(int(sys.argv[1]))))
"""


def test_heartbeats_of_many_writers_at_once(box: Box) -> None:
    box.ok("identity_registry.py", "create", "runner", "a")
    path = box.home / "identities" / "runner-a.json"
    torn: list[str] = []
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            try:
                json.loads(path.read_text())
            except ValueError as error:
                torn.append(str(error))

    reader = threading.Thread(target=read)
    reader.start()
    env = {**box.env, "PYTHONPATH": str(SCRIPTS)}
    writers = [subprocess.Popen([sys.executable, "-c", _BEATS, "15"], env=env, stderr=subprocess.PIPE, text=True)
               for _ in range(4)]
    told = [writer.communicate(timeout=DEADLINE)[1] for writer in writers]
    over.set()
    reader.join()
    assert [writer.returncode for writer in writers] == [0] * 4
    assert told == [""] * 4
    assert torn == []
    assert {entry.name for entry in path.parent.iterdir()} == {"runner-a.json", "runner-a.lock"}


def test_one_of_many_concurrent_creates_succeeds(box: Box) -> None:
    env = {**box.env, "PYTHONPATH": str(SCRIPTS)}
    program = "import sys; from identity_registry import main; sys.exit(main(['create', 'runner', 'a']))"
    makers = [subprocess.Popen([sys.executable, "-c", program], env=env, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL) for _ in range(6)]
    assert sorted(maker.wait(timeout=DEADLINE) for maker in makers) == [0, 1, 1, 1, 1, 1]
    assert box.store.get(Identity, Key("runner", "a")).incarnation == 1


# ---------------------------------------------------------------------------------------------------- the commands


def _journal(files: RunFiles, *records: tuple[str, dict[str, Any]]) -> None:
    journal = Writer(files.journal, "test")
    for kind, data in records:
        journal.append(kind, data, OLD)
    journal.close()


def test_status_of_a_failed_run(box: Box) -> None:
    files = box.launched("r1")
    _journal(files, ("run", {"status": "running"}),
             ("node", {"node": "a", "status": "pending", "attempt": 1}),
             ("node", {"node": "b", "status": "pending", "attempt": 1}),
             ("node", {"node": "a", "status": "active", "attempt": 1}),
             ("node", {"node": "a", "status": "failed", "attempt": 1, "reason": "acceptance is red"}),
             ("run", {"status": "failed", "reason": "a failed"}))
    run_records.save(files.attempt("a", 1) / "result.json", Result("r1", "a", 1, 1, "fail", OLD, tail="one\nE   two"))
    box.identity("runner", "a", "r1", status="terminated")
    shown = box.cli("status", "r1")
    for part in ("run r1: failed, 0 of 2 landed", "acceptance is red", "E   two", "garrison logs a --run r1",
                 str(files.attempt("a", 1))):
        assert part in shown
    assert "runner-a@r1" in box.cli("status", "r1", "--verbose") and "runner-a@r1" not in shown
    body = json.loads(box.cli("status", "r1", "--json"))
    assert (body["status"], body["total"], body["failed"][0]["node"]) == ("failed", 2, "a")
    assert [one["run_id"] for one in json.loads(box.cli("status", "--json"))] == ["r1"]
    assert "no run r9" in box.cli("status", "r9", code=1)


def test_a_run_without_a_launcher_is_reported_and_a_starting_incarnation_has_no_pid_yet(box: Box) -> None:
    files = box.launched("r1")
    _journal(files, ("run", {"status": "running"}))
    box.identity("runner", "a", "r1", status="starting", pid=4_000_000, start_ticks=1)
    box.identity("runner", "b", "r1", status="active", pid=4_000_001, start_ticks=1)
    assert [one["pid"] for one in json.loads(box.cli("status", "r1", "--json"))["layers"]] == [None, 4_000_001]
    assert "4000000" not in box.cli("status", "r1")
    here = processes.this_host()
    box.identity("launch", "launch", "r1", pid=4_000_000, start_ticks=1, host=here.host, boot_id=here.boot_id,
                 pid_ns=here.pid_ns)
    assert "garrison up" in box.cli("status")


def test_a_run_that_lost_its_journal_does_not_start_over_and_a_damaged_one_is_named(box: Box) -> None:
    files = box.launched("r1")
    box.store.update(Hook, Key("guardian", "p", "r1"),
                     lambda _: Hook("h", "guardian", "p", "r1", OLD, OLD, phase="executing"))
    _journal(files, ("open", {"incarnation": 1, "pid": 1}))
    done = box.run("cli.py", "resume", "r1")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert str(files.journal) in done.stderr
    done = box.run("cli.py", "status", "r1", "--json")
    assert json.loads(done.stdout)["status"] == "corrupt"
    assert str(files.journal) in done.stderr
    box.launched("r2")
    for damaged in (files.journal.read_text(), "nonsense\n"):
        files.journal.write_text(damaged)
        done = box.run("cli.py", "status", "--json")
        assert {body["run_id"]: body["status"] for body in json.loads(done.stdout)} == {"r1": "corrupt", "r2": "new"}
        assert str(files.journal) in done.stderr


def test_an_empty_home_lists_the_other_homes(box: Box, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / ".local/state/garrison").mkdir(parents=True)
    (tmp_path / ".local/state/garrison/homes").write_text(f"{other}\n{tmp_path / 'removed'}\n{box.home}\n")
    done = box.run("cli.py", "status")
    assert (done.returncode, done.stdout) == (0, "")
    assert str(other) in done.stderr
    assert "removed" not in done.stderr
    assert box.cli("home").strip() == str(box.home)
    assert json.loads(box.cli("home", "--json")) == {"home": str(box.home), "others": [str(other)]}
    assert box.cli("--home", other, "home").strip() == box.cli("home", "--home", other).strip() == str(other)


def test_logs_of_an_attempt_and_of_a_process(box: Box) -> None:
    files = box.launched("r1")
    for attempt in (1, 2):
        files.attempt("a", attempt).mkdir(parents=True)
        (files.attempt("a", attempt) / "output.log").write_text(f"try {attempt}\n")
    files.process_log("guardian-p").parent.mkdir(parents=True)
    files.process_log("guardian-p").write_text("guardian says\n")
    files.process_log("runner-a").write_text("runner says\n")
    box.identity("guardian", "p", "r1", status="terminated")
    assert box.cli("logs", "a") == "try 2\n"
    assert box.cli("logs", "a", "--attempt", 1) == "try 1\n"
    assert box.cli("logs", "a", "-f") == "try 2\n", "no process is alive, there is nothing to follow"
    assert box.cli("logs", "a", "--layer", "runner") == "runner says\n"
    assert box.cli("logs", "--process", "guardian") == "guardian says\n"
    assert "no run" in box.cli("logs", "zz", code=1)
    assert "nothing was printed" in box.cli("logs", "a", "--attempt", 9, code=1)


def test_logs_follow_until_the_node_ends(box: Box, sleeper: Callable[[], Sleeper]) -> None:
    files = box.launched("r1")
    folder = files.attempt("a", 1)
    folder.mkdir(parents=True)
    (folder / "output.log").write_text("one\n")
    process = sleeper()
    box.living("runner", "a", "r1", process)
    following = subprocess.Popen([sys.executable, str(SCRIPTS / "cli.py"), "logs", "a", "-f"], env=box.env,
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert following.stdout.readline() == b"one\n"
        with (folder / "output.log").open("a") as log:
            log.write("two\n")
        assert following.stdout.readline() == b"two\n"
        files.attempt("a", 2).mkdir()
        (files.attempt("a", 2) / "output.log").write_text("three\n")
        assert following.stdout.readline() == b"three\n"
        process.end()
        assert following.wait(timeout=DEADLINE) == 0
        assert following.stdout.read() == b""
    finally:
        following.kill()
        following.wait()
        following.stdout.close()


def test_attach_refuses_plain_processes_and_ended_sessions(box: Box, tmp_path: Path) -> None:
    files = box.launched("r1")
    files.attempt("a", 1).mkdir(parents=True)
    assert "no session yet" in box.cli("attach", "a", code=1)
    terminal = ProcessTerminal(box.home)
    session = terminal.open("orchestrator-a@r1", ["sh", "-c", "echo at work; exec sleep 600"], env=box.env,
                            cwd=tmp_path, log=tmp_path / "session.log")
    try:
        where = RealProcesses().here()
        box.identity("orchestrator", "a", "r1", pid=session.pid, start_ticks=session.ticks, host=where.host,
                     boot_id=where.boot_id, pid_ns=where.pid_ns, tmux=asdict(session))
        assert "garrison logs a --run r1 -f" in box.cli("attach", "a", code=1), "there is nothing to attach to"
        assert "plain process" in box.cli("attach", "a", "--write", code=1)
    finally:
        terminal.close(session, grace=0)
    assert "its session has ended" in box.cli("attach", "a", code=1)


def test_signals_are_listed_with_their_state(box: Box) -> None:
    def post(id_: str, run: str) -> Path:
        source, target = {"role": "runner", "name": "a", "incarnation": 1}, {"role": "guardian", "name": "p"}
        return signals.post(box.home, signals.Signal(id_, source, target, "NODE_COMPLETE", run, OLD, "a", 1))

    signals.acknowledge(post("taken", "r1"))
    signals.refuse(post("refused", "r1"), "it is of attempt 1")
    post("waiting", "r1")
    post("other", "r2")
    found = {one["id"]: (one["state"], one["reason"]) for one in json.loads(box.cli("signals", "list", "--json"))}
    assert found == {"taken": ("taken", ""), "refused": ("refused", "it is of attempt 1"), "waiting": ("waiting", ""),
                     "other": ("waiting", "")}
    unacked = json.loads(box.cli("signals", "list", "--unacked", "--run", "r1", "--json"))
    assert [one["id"] for one in unacked] == ["waiting"]
    torn = box.home / "signals" / "guardian-p@r1" / "torn.json"
    torn.write_text("{")
    done = box.run("cli.py", "signals", "list")
    assert "NODE_COMPLETE" in done.stdout
    assert str(torn) in done.stderr


def test_usage_errors_are_2_and_refusals_1_without_a_traceback(box: Box) -> None:
    assert "No such command" in box.cli("frobnicate", code=2)
    assert all("not a run id: ''" in box.cli(command, "", code=2) for command in ("status", "stop"))
    assert "No such option" in box.cli("status", "--frobnicate", code=2)
    assert "not a run id" in box.cli("status", "R 1", code=2)
    assert box.cli("logs", "a", code=1).startswith("garrison: ")
    assert box.run("cli.py", "logs", "a").stderr.count("\n") == 1
    shown = box.start("cli.py", "logs", "a", GARRISON_DEBUG="1")
    assert "Traceback" in shown.stderr
    as_module = subprocess.run([sys.executable, "-P", "-m", "garrison", "statsu"], check=False, capture_output=True,
                               text=True)
    assert as_module.returncode == 2
    assert "did you mean 'status'" in as_module.stderr


def test_a_closed_pipe_is_no_error(box: Box) -> None:
    for number in range(60):
        box.identity(name=f"n{number}", metadata={"note": "x" * 4000})
    done = subprocess.run(["sh", "-c", f"{sys.executable} {SCRIPTS}/identity_registry.py list --json | head -c 1"],
                          env=box.env, capture_output=True, text=True, check=False, timeout=DEADLINE)
    assert (done.stdout, done.stderr) == ("[", "")


def test_find_stale_respawns_only_with_the_option_and_only_what_needs_it(box: Box,
                                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    """`find-stale --respawn` resumes all runs once; resuming has its own tests."""
    from garrison.launch import resume as resume_all

    for status in ("stopped", "done"):
        _journal(box.launched(status), ("run", {"status": "running"}), ("run", {"status": status}))
    assert box.ok("identity_registry.py", "find-stale", "--respawn") == []
    assert box.store.read(Identity, launcher_key("stopped")) is None, "a run that needs no launcher gets none"
    asked: list[Path] = []
    monkeypatch.setattr(resume_all, "resume_all", lambda home: asked.append(home) or [])
    assert box.ok("identity_registry.py", "find-stale") == asked == []
    assert box.ok("identity_registry.py", "find-stale", "--respawn") == []
    assert asked == [box.home]
