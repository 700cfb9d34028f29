"""Environment of processes: PATH, variables, and the settings that the launch recorded."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from garrison.processes.runtime import Runtime
from garrison.records.run import Launch
from garrison.system import environment
from garrison.system.environment import absolute_path, child_environment, list_withheld
from garrison.system.git import repository

SOURCE = {
    "PATH": "/bin", "HOME": "/home/u", "USER": "u", "LOGNAME": "u", "SHELL": "/bin/sh", "LANG": "C.UTF-8",
    "LC_TIME": "de", "TZ": "UTC", "TERM": "xterm", "TMPDIR": "/t", "XDG_RUNTIME_DIR": "/run/u", "https_proxy": "p",
    "HTTPS_PROXY": "P", "NO_PROXY": "n", "SSL_CERT_FILE": "/c", "REQUESTS_CA_BUNDLE": "/c", "GARRISON_HOME": "/g",
}
SECRETS = {
    "CLAUDECODE": "1", "CLAUDE_SESSION_ID": "s", "CLAUDE_CODE_ENTRYPOINT": "cli", "AWS_SECRET_ACCESS_KEY": "k",
    "GARRISON_LIFE": "h:r:runner-a#1", "GARRISON_INCARNATION": "1", "VIRTUAL_ENV": "/home/u/venv", "PYTHONPATH": "/p",
    "GIT_DIR": "/x", "TMUX": "/tmp/t,1,0", "LD_PRELOAD": "x.so", "LCX": "no", "XDG_CONFIG_HOME": "/x",
}


def test_only_listed_variables_and_named_extras_pass_and_own_ones_win() -> None:
    source = {**SOURCE, **SECRETS}
    assert child_environment(source) == SOURCE
    made = child_environment(source, ["AWS_SECRET_ACCESS_KEY", "ABSENT"], {"GARRISON_LIFE": "mine", "PATH": "/own"})
    assert made == {**SOURCE, "AWS_SECRET_ACCESS_KEY": "k", "GARRISON_LIFE": "mine", "PATH": "/own"}
    assert list_withheld(source, ["PYTHONPATH"]) == sorted(set(SECRETS) - {"PYTHONPATH"}), "no values"
    assert list_withheld({"PWD": "/", "OLDPWD": "/", "SHLVL": "1", "_": "/bin/sh", "TOKEN": "x"}) == ["TOKEN"]
    assert source == {**SOURCE, **SECRETS}


@pytest.mark.parametrize("name", ["CLAUDECODE", "CLAUDE_SESSION_ID", "CLAUDE_CODE_ENTRYPOINT", "GARRISON_LIFE",
                                  "GARRISON_INCARNATION", "VIRTUAL_ENV"])
def test_some_do_not_pass_even_when_named(name: str) -> None:
    assert name not in child_environment(SECRETS, [name])
    assert name in list_withheld(SECRETS, [name])


@pytest.mark.parametrize(("virtual", "passes"), [
    ("/trees/a/.venv", True), ("/trees/a/x/../.venv", True), ("/trees/ab/.venv", False),
    ("/trees/a/../b/.venv", False), ("/home/u/venv", False), ("/trees/a", False), ("", False)])
def test_a_virtual_environment_passes_only_inside_the_tree(virtual: str, passes: bool) -> None:
    made = child_environment({"VIRTUAL_ENV": virtual}, own={"GARRISON_TREE": "/trees/a/"})
    assert made.get("VIRTUAL_ENV") == (virtual if passes else None)


@pytest.mark.parametrize(("path", "own"), [
    ("node_modules/.bin::/usr/bin:.:/bin:../bin:~/bin", "/usr/bin:/bin"), ("/usr/bin:", "/usr/bin"),
    ("bin", os.defpath), ("", os.defpath), ("/opt/a b/bin:/bin", "/opt/a b/bin:/bin")])
def test_garrison_finds_its_own_programs_only_in_absolute_folders(path: str, own: str,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen: with `node_modules/.bin` in PATH, garrison ran the git that an agent had put into its worktree."""
    assert absolute_path(path) == repository.environment({"PATH": path})["PATH"] == own
    monkeypatch.setenv("PATH", path)
    typed: dict[str, str] = {}
    environment.seal_path(typed)
    environment.seal_path(typed)
    assert os.environ["PATH"] == own
    assert environment.typed_environment(typed)["PATH"] == path, "agents and gates find what the user finds"


# ---- environment of a run's processes: as the launch recorded it, also when cron resumes the run


NEW = {"sandbox": "sandbox: bubblewrap"}


@pytest.mark.parametrize(("recorded", "environ", "mode", "auto"), [
    ({**NEW, "sandbox_mode": "none"}, {}, "none", None),
    ({**NEW, "sandbox_mode": "none"}, {"GARRISON_SANDBOX": "bubblewrap"}, "bubblewrap", None),
    (NEW, {}, None, None), ({}, {}, "none", None), ({"adhoc": True}, {}, None, None),
    ({"sandbox": "sandbox: landlock 4, which leaves gaps"}, {}, None, "landlock"),
], ids=["as launched", "stated at the resume", "as configured", "of an older edition", "by hand", "auto of then"])
def test_a_run_keeps_the_mode_of_its_sandbox(recorded: dict[str, Any], environ: dict[str, str],
                                             mode: str | None, auto: str | None) -> None:
    launch = Launch("r1", "g", "/repo", "main", "0", "now", **recorded)
    runtime: Any = SimpleNamespace(environ=environ, home=Path("/home"))
    made = Runtime.environment(runtime, launch, {})
    assert (made.get("GARRISON_SANDBOX"), made.get("GARRISON_SANDBOX_AUTO")) == (mode, auto)
