"""Who may give each command, and in which process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from garrison.cli import authority
from garrison.cli.authority import COMMANDS, CONTROL_OPTIONS, Authority, Caller, NotPermitted, authority_of
from garrison.cli.hooks import hook_manager
from garrison.cli.identities import identity_registry
from garrison.cli.main import garrison
from garrison.cli.signals import signal_protocol
from garrison.cli.spawn import spawn_orchestrator, spawn_runner
from garrison.records import run as run_records
from garrison.records.names import Key, format_marker
from garrison.records.run import Launch, RunFiles

CONTROL = {
    "launch", "run", "init", "install-service", "up", "stop", "serve", "answer", "tell", "takeover", "login",
    "add", "edit", "undo", "tick", "rescue restore", "clean", "import", "pr sync", "pr open", "take", "schedule add",
    "schedule run-now", "schedule pause", "schedule unpause", "schedule remove", "notify test", "uninstall", "plan",
    "ask", "chat", "agents park", "agents unpark", "agents cancel", "agents retry", "agents respawn",
    "merge-queue process", "merge-queue cancel", "merge-queue hold", "merge-queue release", "merge-queue retry",
    "merge-queue pause", "merge-queue unpause", "merge-queue resume", "merge-queue doctor",
    "host add", "host list", "host show", "host drain", "host remove", "host run",  # list and show reach hosts over ssh
    "pipeline answer", "pipeline signal", "spawn-runner", "setup clear",
    "spawn-orchestrator", "preview", "lessons keep", "lessons drop"}


def commands(command: click.Command, *above: str) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield " ".join(above), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from commands(found, *above, name)


def test_each_command_has_an_authority():
    """A new command is a control command until it is entered here and in the table."""
    scripts = [(script.name or "", script) for script in (hook_manager, identity_registry, signal_protocol)]
    every = dict([*commands(garrison), *(found for name, script in scripts for found in commands(script, name)),
                  ("spawn-runner", spawn_runner), ("spawn-orchestrator", spawn_orchestrator)])
    assert set(every) - set(COMMANDS) == CONTROL
    assert set(COMMANDS) <= set(every)
    for name, options in CONTROL_OPTIONS.items():
        assert set(options) <= {parameter.name for parameter in every[name].params}, name


def test_an_option_turns_a_view_into_a_control_command():
    assert authority_of("doctor", {"fix": False}) is Authority.VIEW
    assert authority_of("doctor", {"fix": True}) is Authority.CONTROL
    assert authority_of("merge-queue config", {"lock_files": (), "guard": None}) is Authority.VIEW
    assert authority_of("merge-queue config", {"lock_files": ("a",)}) is Authority.CONTROL
    assert authority_of("attach", {"write": True}) is Authority.CONTROL


HOME = "/a/home"


@pytest.fixture
def inside(monkeypatch, tmp_path) -> Path:
    """Run as the agent of node impl_auth in run r1 of a home."""
    (tmp_path / "identities").mkdir()
    monkeypatch.setattr(authority, "find_caller", lambda: Caller(str(tmp_path), "r1", "orchestrator-impl_auth"))
    return tmp_path


@pytest.mark.parametrize("command", ["stop", "launch", "merge-queue enqueue", "signals send", "spawn-runner", "any"])
def test_an_agent_gives_no_control_command(inside, command):
    with pytest.raises(NotPermitted) as refusal:
        authority.require(command, {}, inside)
    assert str(refusal.value).startswith(f"`{command}` is refused in the agent of impl_auth (run r1), which may only")
    assert "\n" not in str(refusal.value)
    assert refusal.value.exit_code == 2


def test_an_agent_reads_views_writes_its_own_record_and_may_control_another_home(inside, tmp_path_factory):
    for command in ("status", "why", "report", "pipeline validate"):
        authority.require(command, {}, inside)
    own = {"role": "orchestrator", "name": "impl_auth"}
    for given in (own, {**own, "run": None}, {**own, "run": "r1"}):
        authority.require("hook-manager update-resumption", given, inside)
    for given in ({**own, "role": "runner"}, {**own, "name": "other"}, {**own, "run": "r2"}):
        with pytest.raises(NotPermitted):
            authority.require("hook-manager update-phase", given, inside)
    authority.require("stop", {}, tmp_path_factory.mktemp("another"))


def test_the_agent_of_an_adhoc_run_may_do_what_a_guardian_does(inside):
    launch = Launch("r1", "crew", "/repo", "main", "", "/trees", adhoc=True)
    run_records.save(RunFiles(inside, "r1").launch, launch)
    for command in ("merge-queue enqueue", "signal-protocol write"):
        authority.require(command, {}, inside)
    authority.require("hook-manager update-phase", {"role": "runner", "name": "impl_auth"}, inside)
    with pytest.raises(NotPermitted):
        authority.require("stop", {}, inside)
    with pytest.raises(NotPermitted):
        authority.require("merge-queue config", {"no_gate": True}, inside)


def test_a_view_of_a_home_outside_the_sandbox_is_refused(inside):
    (inside / "identities").rmdir()
    authority.require("pipeline validate", {}, inside)
    authority.require("note", {}, inside)
    with pytest.raises(NotPermitted, match="is not in its sandbox"):
        authority.require("status", {}, inside)


FIND = "from garrison.cli.authority import find_caller; print(find_caller())"


def found_below(stem: tuple[str, str], *prefix: str) -> str:
    """Return the caller that a process below this life marker finds."""
    marker = format_marker(HOME, Key(*stem, "r1"), 3)
    below = [*prefix, sys.executable, "-P", "-c", FIND]
    return subprocess.run(["sh", "-c", '"$@"; exit $?', "sh", *below], check=True, capture_output=True, text=True,
                          env={"PATH": os.environ["PATH"], "GARRISON_LIFE": marker}).stdout.strip()


def test_the_caller_is_found_among_the_ancestors_and_described_by_its_role():
    agent = str(Caller(HOME, "r1", "orchestrator-a"))
    assert found_below(("orchestrator", "a")) == agent
    assert found_below(("orchestrator", "a"), "env", "-i", f"PATH={os.environ['PATH']}", "setsid") == agent
    assert found_below(("runner", "a")) == str(Caller(HOME, "r1", "runner-a"))
    assert found_below(("launch", "launch")) == "None", "a [notify] command is the user's"
    assert found_below(("guardian", "crew")) == "None"
    assert Caller(HOME, "r1", "runner-a").describe() == "a job of a (run r1)"
    assert Caller(HOME, "", "gate-q1").describe() == "a gate"
    assert Caller(HOME, "r1", "orchestrator-impl_auth").describe() == "the agent of impl_auth (run r1)"
