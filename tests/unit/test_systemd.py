"""Start of a launcher and a tmux server with and without systemd's user manager.

The machines that run these tests have no systemd: `systemd-run`, `systemctl` and `loginctl` are programs of the test,
which record their arguments and, as systemd-run does, execute the command in the same process.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from garrison.cli import main
from garrison.cli.service import cron_lines, fill_unit, is_called_by_cron
from garrison.config import Timing
from garrison.launch import launch
from garrison.processes.runtime import Runtime
from garrison.system import systemd as user_manager
from garrison.system.systemd import StartMethod, choose_start_method, parse_lingering, unit_serves_home
from garrison.system.tmux_server import scope_prefix


@pytest.mark.parametrize(("in_unit", "unit", "manager", "lingering", "wanted"), [
    (False, False, False, None, "detached"),
    (False, False, True, None, "scope"),
    (False, False, True, True, "scope"),
    (False, False, True, False, "detached"),
    (False, True, True, False, "unit"),
    (False, True, True, True, "unit"),
    (True, True, True, True, "here"),
    (True, False, False, None, "here"),
])
def test_the_start_method(in_unit: bool, unit: bool, manager: bool, lingering: bool | None,
                          wanted: StartMethod) -> None:
    assert choose_start_method(in_unit=in_unit, unit=unit, manager=manager, lingering=lingering) == wanted


@pytest.mark.parametrize(("said", "home", "wanted"), [
    ("LoadState=loaded\nEnvironment=\n", "/default", True),
    ("LoadState=loaded\nEnvironment=A=b GARRISON_HOME=/default\n", "/default", True),
    ("LoadState=loaded\nEnvironment=GARRISON_HOME=/other\n", "/default", False),
    ("LoadState=not-found\nEnvironment=\n", "/default", False),
    ('LoadState=loaded\nEnvironment="A=b c\n', "/default", False),
    ("", "/default", False),
    ('LoadState=loaded\nEnvironment="GARRISON_HOME=/a home"\n', "/a home", True),
])
def test_a_unit_serves_only_its_own_home(said: str, home: str, wanted: bool) -> None:
    assert unit_serves_home(said, home, "/default") is wanted


def test_lingering_is_read() -> None:
    assert [parse_lingering(said) for said in ("Linger=yes\n", "Linger=no\n", "")] == [True, False, None]


@dataclass
class Systemd:
    """Programs that simulate systemd, in the first folder of PATH; `asked` has their calls."""

    root: Path

    def __post_init__(self) -> None:
        self.runtime, self.programs = self.root / "rt", self.root / "bin"
        (self.runtime / "systemd").mkdir(parents=True)
        (self.runtime / "systemd" / "private").touch()
        self.programs.mkdir()
        self.program("systemd-run", 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"')
        self.program("systemctl", "cat \"$0.says\"; test ! -e \"$0.fails\"")
        self.program("loginctl", 'cat "$0.says"')
        self.say("loginctl", "Linger=yes\n")
        self.say("systemctl", "")

    def program(self, name: str, body: str) -> None:
        path = self.programs / name
        path.write_text(f'#!/bin/sh\nprintf "%s\\n" "{name} $*" >> {self.root}/asked\n{body}\n')
        path.chmod(0o755)

    def say(self, name: str, text: str) -> None:
        (self.programs / f"{name}.says").write_text(text)

    @property
    def asked(self) -> list[str]:
        path = self.root / "asked"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def environ(self) -> dict[str, str]:
        return {"PATH": f"{self.programs}:{os.environ['PATH']}", "XDG_RUNTIME_DIR": str(self.runtime)}


@pytest.fixture
def systemd(tmp_path: Path) -> Systemd:
    return Systemd(tmp_path)


def test_no_scope_without_a_manager_that_answers(systemd: Systemd, monkeypatch: pytest.MonkeyPatch) -> None:
    world = Runtime.real(systemd.root, systemd.environ)
    assert launch.systemd_scope(world)[1:] == ["--user", "--scope", "--quiet", "--collect", "--"]
    assert systemd.asked[-1] == "systemd-run --user --scope --quiet --collect -- true", "it is tried first"
    assert launch.logout_note(world) == ""
    assert launch.systemd_scope(Runtime.real(systemd.root, {**systemd.environ, "NOTIFY_SOCKET": "/s"})) == [], "a unit"
    monkeypatch.setenv("PATH", systemd.environ["PATH"])
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(systemd.runtime))
    assert scope_prefix()[1:3] == ["--user", "--scope"]

    systemd.say("loginctl", "Linger=no\n")
    assert launch.systemd_scope(world) == [], "the manager would end the scope at logout"
    assert scope_prefix() == []
    assert "loginctl enable-linger" in launch.logout_note(world)

    systemd.say("loginctl", "Linger=yes\n")
    systemd.program("systemd-run", "echo 'Failed to connect to bus' >&2; exit 1")
    assert launch.systemd_scope(world) == []
    (systemd.runtime / "systemd" / "private").unlink()
    assert user_manager.find_manager(world.environ) is None
    assert launch.logout_note(world) == ""
    assert user_manager.find_manager({"PATH": "/nonexistent"}) is None


def test_a_manager_that_hangs_is_not_used(systemd: Systemd, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = user_manager.find_manager(systemd.environ)
    monkeypatch.setattr(user_manager.call, "__defaults__", (0.2,))
    systemd.program("systemd-run", "exec sleep 60")
    assert not user_manager.can_start_scope(manager)


def test_a_loaded_unit_is_started(systemd: Systemd) -> None:
    manager = user_manager.find_manager(systemd.environ)
    systemd.say("systemctl", "LoadState=loaded\nEnvironment=\n")
    assert user_manager.has_unit(manager, "r1", "/home", "/home")
    assert not user_manager.has_unit(manager, "r1", "/home", "/default")
    assert user_manager.start_unit(manager, "r1")
    assert systemd.asked[-1] == "systemctl --user start garrison@r1.service"
    (systemd.programs / "systemctl.fails").touch()
    assert not user_manager.start_unit(manager, "r1")
    assert not user_manager.has_unit(None, "r1", "/home", "/home")


def test_the_alarm_of_a_home_is_a_timer_that_fires_once_within_a_second(systemd: Systemd) -> None:
    """What `garrison up` starts must outlive its unit."""
    manager = user_manager.find_manager(systemd.environ)
    words = user_manager.alarm_words(manager, Path("/a home"), 1_796_007_599.2, ["garrison", "up"])
    unit = user_manager.alarm_unit(Path("/a home"))
    assert unit != user_manager.alarm_unit(Path("/other")) and f"--unit={unit}" in words
    assert {"--on-calendar=2026-11-30 03:00:00 UTC", "--timer-property=AccuracySec=100ms",
            "--property=KillMode=process", "--setenv=GARRISON_HOME=/a home", "--collect"} <= set(words)
    assert words[-3:] == ["--", "garrison", "up"]


# ---- the units in systemd/ are read, not started


SYSTEMD = Path(__file__).resolve().parents[2] / "systemd"
UNITS = ("garrison@.service", "garrison-up.service", "garrison-up.timer")
SERVICES = ("garrison@.service", "garrison-up.service")
LAUNCHER_DEADLINE_S = 60

Unit = dict[str, dict[str, list[str]]]

KNOWN = {
    "Unit": {"Description", "StartLimitIntervalSec", "StartLimitBurst"},
    "Service": {"Type", "NotifyAccess", "ExecStart", "KillMode", "TimeoutStopSec", "TimeoutStartSec", "Restart",
                "RestartPreventExitStatus", "RestartSec", "OOMPolicy", "WatchdogSec"},
    "Timer": {"OnBootSec", "OnUnitActiveSec", "AccuracySec", "Unit"},
    "Install": {"WantedBy"},
}


def read_unit(text: str) -> Unit:
    """Return sections → keys → all values; a key may occur several times, a comment only on a separate line."""
    unit: Unit = {}
    section: dict[str, list[str]] | None = None
    for line in text.splitlines():
        if not line.strip() or line.startswith(("#", ";")):
            continue
        if heading := re.fullmatch(r"\[(\w+)\]", line):
            section = unit.setdefault(heading[1], {})
            continue
        key, equals, value = line.partition("=")
        assert equals and section is not None, f"neither a section nor a setting: {line!r}"
        section.setdefault(key, []).append(value)
    return unit


def load(name: str) -> Unit:
    return read_unit((SYSTEMD / name).read_text(encoding="utf-8"))


def seconds(unit: Unit, section: str, key: str) -> int:
    (value,) = unit[section][key]
    return int(value)


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_has_valid_keys_and_kills_only_its_main_process(name: str) -> None:
    for section, settings in load(name).items():
        assert settings.keys() <= KNOWN[section], section
        values = [value for each in settings.values() for value in each]
        assert not [value for value in values if "#" in value or ";" in value], "nothing follows a value on its line"
        assert section != "Service" or settings["KillMode"] == ["process"]
        assert "PrivateTmp" not in settings


def test_the_launcher_reports_ready_has_time_to_stop_and_is_restarted_if_silent() -> None:
    """`WatchdogSec` is as long as the timeout of a heartbeat; a failed or stopped run is not restarted."""
    unit = load("garrison@.service")
    assert unit["Service"]["Type"] == ["notify"]
    assert seconds(unit, "Service", "TimeoutStopSec") > LAUNCHER_DEADLINE_S
    assert unit["Service"]["ExecStart"] == ["%h/.local/bin/garrison resume %i"]
    assert seconds(unit, "Service", "WatchdogSec") >= Timing().beat_timeout
    assert unit["Service"]["Restart"] == ["on-failure"]
    prevents = set(unit["Service"]["RestartPreventExitStatus"][0].split())
    assert {"1", "130"} <= prevents and not {"6", "SIGABRT"} & prevents


def test_the_timer_fires_every_minute_and_after_boot() -> None:
    unit = load("garrison-up.timer")
    assert unit["Timer"]["Unit"] == ["garrison-up.service"]
    assert seconds(unit, "Timer", "OnUnitActiveSec") <= 60
    assert "OnBootSec" in unit["Timer"]
    assert load("garrison-up.service")["Service"]["Type"] == ["oneshot"]


@pytest.mark.parametrize("name", SERVICES)
def test_the_commands_of_a_unit_exist(name: str) -> None:
    (line,) = load(name)["Service"]["ExecStart"]
    program, *arguments = shlex.split(line)
    assert Path(program).name == "garrison"
    command = next(value for value in vars(main).values() if isinstance(value, click.Group))
    while arguments and isinstance(command, click.Group):
        command = command.get_command(click.Context(command), arguments.pop(0))
    assert command is not None, line
    known = {option for parameter in command.params for option in parameter.opts}
    assert {each for each in arguments if each.startswith("--")} <= known


def test_program_and_home_are_quoted_for_systemd_and_cron() -> None:
    """`%` starts a specifier in a unit, and ends a command in a crontab; blanks are quoted."""
    program, home = Path("/opt/my tools/100%/garrison"), Path("/srv/a home")
    for name in SERVICES:
        unit = read_unit(fill_unit((SYSTEMD / name).read_text(encoding="utf-8"), program, home))
        assert unit["Service"]["Environment"] == ['"GARRISON_HOME=/srv/a home"']
        assert unit["Service"]["ExecStart"][0].startswith('"/opt/my tools/100%%/garrison" ')
    assert cron_lines(program, home)[1] == (
        "* * * * *  GARRISON_HOME='/srv/a home' '/opt/my tools/100\\%/garrison' up >/dev/null 2>&1")
    assert cron_lines(Path("/usr/bin/garrison"), None)[0] == "@reboot    /usr/bin/garrison up >/dev/null 2>&1"


def test_only_a_line_of_a_crontab_that_is_no_comment_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A comment in another encoding does not end `garrison schedule add`."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    program = tmp_path / "crontab"
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/lines\n")
    program.chmod(0o755)
    line = cron_lines(Path("/usr/bin/garrison"), None)[1]
    for text, called in ((f"# \xfc\n{line}\n", True), (f" # {line}\n* * * * * /bin/up\n", False), ("", False)):
        (tmp_path / "lines").write_bytes(text.encode("latin-1"))
        assert is_called_by_cron() is called, text
