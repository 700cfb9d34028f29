"""The texts in systemd/: what they promise, and that the commands in them exist.

There is no systemd on the machines that run these tests, so the units are read, not started.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from garrison.cli.service import cron_lines, fill_unit
from garrison.config import Timing

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
    """Sections → keys → all values; a key may occur several times, a comment only on a line of its own."""
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
def test_sections_and_keys_are_systemds_own(name: str) -> None:
    for section, settings in load(name).items():
        assert settings.keys() <= KNOWN[section], section


@pytest.mark.parametrize("name", SERVICES)
def test_only_the_main_process_is_killed_and_tmp_is_shared(name: str) -> None:
    service = load(name)["Service"]
    assert service["KillMode"] == ["process"]
    assert "PrivateTmp" not in service


@pytest.mark.parametrize("name", UNITS)
def test_nothing_follows_a_value_on_its_line(name: str) -> None:
    values = [value for settings in load(name).values() for each in settings.values() for value in each]
    assert not [value for value in values if "#" in value or ";" in value]


def test_the_launcher_reports_ready_and_is_given_time_to_stop() -> None:
    unit = load("garrison@.service")
    assert unit["Service"]["Type"] == ["notify"]
    assert seconds(unit, "Service", "TimeoutStopSec") > LAUNCHER_DEADLINE_S
    assert unit["Service"]["ExecStart"] == ["%h/.local/bin/garrison resume %i"]


def test_a_failed_or_stopped_run_is_not_started_again() -> None:
    service = load("garrison@.service")["Service"]
    assert service["Restart"] == ["on-failure"]
    assert {"1", "130"} <= set(service["RestartPreventExitStatus"][0].split())


def test_the_timer_asks_every_minute_and_after_boot() -> None:
    unit = load("garrison-up.timer")
    assert unit["Timer"]["Unit"] == ["garrison-up.service"]
    assert seconds(unit, "Timer", "OnUnitActiveSec") <= 60
    assert "OnBootSec" in unit["Timer"]
    assert load("garrison-up.service")["Service"]["Type"] == ["oneshot"]


@pytest.mark.parametrize("name", SERVICES)
def test_commands_of_the_units_exist(name: str) -> None:
    main = pytest.importorskip("garrison.cli.main", reason="the garrison command is not there yet")
    click = pytest.importorskip("click")
    (line,) = load(name)["Service"]["ExecStart"]
    program, *arguments = shlex.split(line)
    assert Path(program).name == "garrison"
    command = next(value for value in vars(main).values() if isinstance(value, click.Group))
    while arguments and isinstance(command, click.Group):
        command = command.get_command(click.Context(command), arguments.pop(0))
    assert command is not None, line
    known = {option for parameter in command.params for option in parameter.opts}
    assert {each for each in arguments if each.startswith("--")} <= known


def test_a_silent_launcher_is_started_again() -> None:
    """`WatchdogSec` is as patient as the layers are with each other, and its kill is a reason to start again."""
    unit = load("garrison@.service")
    assert seconds(unit, "Service", "WatchdogSec") >= Timing().beat_timeout
    assert unit["Service"]["Restart"] == ["on-failure"]
    assert not {"6", "SIGABRT"} & set(unit["Service"]["RestartPreventExitStatus"][0].split())


def test_an_installed_unit_names_program_and_home_as_systemd_and_cron_read_them() -> None:
    """`%` begins a specifier in a unit, and ends a command in a crontab; blanks are quoted."""
    program, home = Path("/opt/my tools/100%/garrison"), Path("/srv/a home")
    for name in SERVICES:
        unit = read_unit(fill_unit((SYSTEMD / name).read_text(encoding="utf-8"), program, home))
        assert unit["Service"]["Environment"] == ['"GARRISON_HOME=/srv/a home"']
        assert unit["Service"]["ExecStart"][0].startswith('"/opt/my tools/100%%/garrison" ')
    assert cron_lines(program, home)[1] == (
        "* * * * *  GARRISON_HOME='/srv/a home' '/opt/my tools/100\\%/garrison' up >/dev/null 2>&1")
    assert cron_lines(Path("/usr/bin/garrison"), None)[0] == "@reboot    /usr/bin/garrison up >/dev/null 2>&1"
