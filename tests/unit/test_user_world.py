"""Tests run as users do, in a plain HOME with default settings. Every exception is listed here."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
OWN_WORLD = ("unit", "contract", "simulator", "recorded_home")
"""Folders with tests of parts of garrison, not of its commands; `recorded_home` was made by version 0.1."""

EVERYWHERE = {
    r"GARRISON_FAILPOINT(_DIR|_TIMES|_LIST)?": "faults: there is no other way to kill a process at a point",
    r"GARRISON_BOOT_ID": "a reboot, which no test can do for real",
    r"GARRISON_(RESCAN|SPAWN_DEADLINE|BEAT_TIMEOUT|ORPHAN_GRACE|RESTART_WINDOW|HEALTHY_AFTER|PROBE_AFTER|"
    r"DAMAGE_PATIENCE|FAILOVER_PATIENCE|GIT_PATIENCE|SWEEP_GRACE|RESCUE_EVERY|RESCUE_LIMIT|STOP_\w+|\w+_TIMEOUT)":
        "shorter waits: docs/reference.md tells users of these variables, and config.toml has none of them",
    r"GARRISON_(LIFE|INCARNATION|RUN|NODE|ATTEMPT|AGENT_SOCKET|TREE|SLOT|\w+_FILE)":
        "what garrison itself sets for its processes and agents, one of which the test plays",
    r"GARRISON_(SCRIPTS|DEMO_CREW|ORDER_SECONDS|ISOLATION|TEST_\w+|DEBUG|COMPLETE)":
        "only the tests' own programs and the examples read it",
    r"XDG_RUNTIME_DIR": "every login session has it",
}
"""Pattern of names → reason why any test may set them."""

ONLY = {
    "support.py": {"GARRISON_HOME": "for the scripts of a checkout, which keep their state in it otherwise"},
    "acp_support.py": {"GARRISON_HOME": "garrison sets it for the attempt that the test begins in its place"},
    "integration/test_stopped_validator.py": {"GARRISON_HOME": "as garrison sets it for a validator"},
    "integration/test_scripts.py": {"GARRISON_HOME": "the scripts of a checkout keep their state in it otherwise"},
    "integration/test_suite.py": {"GARRISON_HOME": "that the tests of a checkout never see the caller's"},
    "e2e/test_machine_failures.py": {"GARRISON_HOME": "a script of a checkout is called by cron"},
    "e2e/test_agent_authority.py": {"GARRISON_HOME": "an agent names the home to get around what it may do"},
    "e2e/test_odd_names.py": {"GARRISON_HOME": "a home that is named so, with a path longer than a socket's"},
    "e2e/test_damage.py": {"GARRISON_HOME": "a home in the state/ of a checkout, which `git clean` removes"},
    "e2e/test_doors.py": {"GARRISON_HOME": "advice that is expected, and typed"},
    "e2e/test_demo.py": {"GARRISON_HOME": "that the demonstration does not use the user's home"},
    "e2e/test_installed.py": {"GARRISON_HOME": "that the timer's unit names the home of its user"},
    "claude/test_sessions.py": {"GARRISON_SANDBOX": "without a proxy, a session counts what it costs by itself"},
    "e2e/test_sandbox.py": {"GARRISON_SANDBOX": "that a run remembers the mode it was launched with"},
    "integration/test_gate_from_target.py": {"GARRISON_SANDBOX": "in every mode"},
    "integration/test_workflow_runs.py": {"GARRISON_SANDBOX": "what --sandbox sets in this process is put back"},
    "hosts_lab.py": {"GARRISON_HOME": "hosts get wheels of the checkout that the test runs",
                     "GARRISON_TREES": "as the home"},
    "hostile/world.py": {"GARRISON_HOME": "a checkout of an older edition may be attacked, whose home is in it"},
    "e2e/test_tutorial.py": {"GARRISON_HOME": "the reader works with a checkout, whose state/ is ours"},
}
"""File → name → reason why this test sets it."""

NO_SANDBOX = {
    "e2e/test_sessions_killed.py": "in a sandbox no agent reaches the orchestrator that it is to kill",
    "claude/test_sessions.py": "without a proxy, a session counts what it costs by itself",
    "e2e/test_agent_authority.py": "what an agent without a sandbox may do",
    "e2e/test_planted_configuration.py": "an agent without a sandbox plants, pushes, forges and kills",
    "e2e/test_node_outcomes.py": "the scripted agent kills its orchestrator, which a sandbox hides from it",
    "e2e/test_user_environment.py": "without a sandbox a gate may import from the user's checkout",
    "e2e/test_acp_agent.py": "in every mode", "e2e/test_network.py": "in every mode",
    "e2e/test_previews.py": "in every mode", "e2e/test_sandbox.py": "the mode that a run was launched with",
    "integration/test_excluded_files.py": "in every mode", "integration/test_gate_from_target.py": "in every mode",
    "integration/test_pipeline_handlers.py": "tools tell the pids of what they start, which a sandbox numbers anew",
    "integration/test_pipeline_run_cmd.py": "a tool tells its pid, which a sandbox numbers anew",
    "integration/test_merge_preflight.py": "what a gate leaves behind, which a sandbox would end",
    "integration/test_merge_processor.py": "what a gate leaves behind, which a sandbox would end; set-up once a slot",
    "claude/test_network.py": "in every mode", "claude/test_session.py": "in every mode",
    "hosts_storm.py": "a host whose containers allow no sandbox",
    "hostile/world.py": "in every mode",
}
"""File → reason why something in it runs without a sandbox."""

NAME = r"((?:GARRISON|XDG)_[A-Z_]+)"
SET = re.compile(rf"""\b{NAME}=(?!=) | ["']{NAME}["'](?:\]\s*=(?!=)|\s*:(?![^\[\]]*\]\s))
                      | set(?:env|default)\(\s*["']{NAME}""", re.VERBOSE)
"""Settings of a variable: for a shell or as a keyword, in a dictionary or environment, or in this process."""
BARE = re.compile(r"""mode\s*=\s*["']none | use_mode\("none | SANDBOX="none | NONE(?::|\ =)\ "none
                      | parametrize\("(?:mode|sandbox)",[^\n]*"none""", re.VERBOSE)
"""Uses of the mode `none`."""


def files() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each test and helper that runs garrison as a user does."""
    for path in sorted(TESTS.rglob("*.py")):
        name = path.relative_to(TESTS)
        if name.parts[0] not in OWN_WORLD:
            yield name.as_posix(), path.read_text(encoding="utf-8")


def test_every_variable_that_a_test_sets_is_listed_with_a_reason() -> None:
    found = {(name, variable) for name, text in files()
             for match in SET.finditer(text) for variable in filter(None, match.groups())}
    listed = {(name, variable) for name, reasons in ONLY.items() for variable in reasons}
    unlisted = {each for each in found - listed if not any(re.fullmatch(known, each[1]) for known in EVERYWHERE)}
    assert not unlisted, "state it in config.toml as a user does, or list it with a reason"
    assert not listed - found, "listed, and not set any more"


def test_every_test_without_a_sandbox_is_listed_with_a_reason() -> None:
    bare = {name for name, text in files() if BARE.search(text)}
    assert bare == NO_SANDBOX.keys()


@pytest.mark.parametrize(("code", "names"), [
    ('env = {"GARRISON_HOME": home}', {"GARRISON_HOME"}), ('launch(graph, GARRISON_TREES="x")', {"GARRISON_TREES"}),
    ('env["GARRISON_SANDBOX"] = mode', {"GARRISON_SANDBOX"}), ('setenv("XDG_STATE_HOME", x)', {"XDG_STATE_HOME"}),
    ('"env GARRISON_HOME=/x garrison up"', {"GARRISON_HOME"}), ('assert env["GARRISON_HOME"] == x', set()),
    ('env.get("GARRISON_HOME", "")', set())])
def test_each_form_of_a_setting_is_found(code: str, names: set[str]) -> None:
    ast.parse(code)
    assert {name for match in SET.finditer(code) for name in filter(None, match.groups())} == names
