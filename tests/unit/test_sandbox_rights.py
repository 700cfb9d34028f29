"""Rights of confined processes, from config.toml and GARRISON_SANDBOX."""

from __future__ import annotations

from pathlib import Path

import pytest

from garrison.agents.config_check import check_configuration
from garrison.cli.configuration import write_setting
from garrison.errors import Refused, UsageError
from garrison.sandbox.place import Mode, Network, Rights, Role
from garrison.sandbox.rights import read_rights

TEXT = """
[sandbox]
mode = "bubblewrap"
network = "allow"
hosts = ["default", "example.org"]
hide = ["~/.config/company"]

[sandbox.gate]
network = "none"

[agents.aider]
argv = ["aider"]
sandbox = "landlock"
write = ["~/.cache/uv", "/srv/cache/"]
"""
ENVIRON = {"HOME": "/home/ada"}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "config.toml").write_text(TEXT)
    return tmp_path


def test_a_home_without_configuration_has_the_defaults(tmp_path: Path) -> None:
    assert read_rights(tmp_path, Role.AGENT, "command", ENVIRON) == Rights(Mode.AUTO, Network.ALLOW)
    bare = read_rights(tmp_path, Role.AGENT, "command", {**ENVIRON, "GARRISON_SANDBOX": "none"})
    assert (bare.mode, bare.network) == (Mode.NONE, Network.OPEN)


def test_a_specific_table_replaces_keys_of_a_general_one(home: Path) -> None:
    general = Rights(Mode.BUBBLEWRAP, Network.ALLOW, ("default", "example.org"),
                     hide=(Path("/home/ada/.config/company"),))
    assert read_rights(home, Role.AGENT, "command", ENVIRON) == general
    assert read_rights(home, Role.SETUP, "", ENVIRON) == general
    gate = read_rights(home, Role.GATE, "", ENVIRON)
    assert (gate.mode, gate.network, gate.hide) == (Mode.BUBBLEWRAP, Network.NONE, general.hide)
    agent = read_rights(home, Role.AGENT, "aider", ENVIRON)
    assert (agent.mode, agent.network) == (Mode.LANDLOCK, Network.ALLOW)
    assert agent.write == (Path("/home/ada/.cache/uv"), Path("/srv/cache"))


def test_only_a_profile_with_push_may_push(home: Path) -> None:
    assert not read_rights(home, Role.AGENT, "aider", ENVIRON).push
    (home / "config.toml").write_text(TEXT + "push = true\n")
    assert read_rights(home, Role.AGENT, "aider", ENVIRON).push
    assert not read_rights(home, Role.AGENT, "command", ENVIRON).push
    (home / "config.toml").write_text(TEXT + 'push = "yes"\n')
    with pytest.raises(UsageError, match=r"\[agents.aider\] push='yes' should be true or false"):
        read_rights(home, Role.AGENT, "aider", ENVIRON)


def test_the_variable_replaces_every_mode(home: Path) -> None:
    for role, agent in ((Role.AGENT, "aider"), (Role.GATE, "")):
        assert read_rights(home, role, agent, {**ENVIRON, "GARRISON_SANDBOX": "none"}).mode is Mode.NONE
    with pytest.raises(UsageError, match="GARRISON_SANDBOX='non' should be one of auto, bubblewrap, landlock, "
                                         "container, none"):
        read_rights(home, Role.GATE, "", {"GARRISON_SANDBOX": "non"})


def test_auto_of_an_earlier_version_stays_landlock_without_a_mode(tmp_path: Path, home: Path) -> None:
    environ = {**ENVIRON, "GARRISON_SANDBOX_AUTO": "landlock"}
    assert read_rights(home, Role.GATE, "", environ).mode is Mode.BUBBLEWRAP
    (tmp_path / "config.toml").write_text("")
    assert read_rights(tmp_path, Role.GATE, "", environ).mode is Mode.LANDLOCK


@pytest.mark.parametrize(("before", "after"), [
    ("", '[sandbox]\nmode = "none"\n'),
    ("[launch]\nagent = 'a'\n", '[launch]\nagent = \'a\'\n\n[sandbox]\nmode = "none"\n'),
    ("# mine\n[sandbox]  # held\nread = [\n  '/a']\n",
     '# mine\n[sandbox]  # held\nmode = "none"\nread = [\n  \'/a\']\n'),
    ("[sandbox]\nmode = 'auto'\n[agents.a]\nargv = ['a']\n", '[sandbox]\nmode = "none"\n[agents.a]\nargv = [\'a\']\n'),
    ("[sandbox.gate]\nnetwork = 'none'\n", '[sandbox.gate]\nnetwork = \'none\'\n\n[sandbox]\nmode = "none"\n'),
    ("[sandbox.gate]\npush = true\n[sandbox]\npush = true\n",
     '[sandbox.gate]\npush = true\n[sandbox]\nmode = "none"\npush = true\n')])
def test_a_setting_is_written_into_the_configuration(tmp_path: Path, before: str, after: str) -> None:
    (tmp_path / "config.toml").write_text(before)
    assert write_setting(tmp_path, ("sandbox", "mode"), Mode.NONE).read_text() == after


def test_a_form_that_cannot_be_changed_is_left_to_the_user(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("sandbox = {network = 'none'}\n")
    with pytest.raises(Refused, match=r'write mode = "landlock" into \[sandbox\] of .*config.toml, then type it again'):
        write_setting(tmp_path, ("sandbox", "mode"), Mode.LANDLOCK, ", then type it again")
    assert (tmp_path / "config.toml").read_text() == "sandbox = {network = 'none'}\n"


@pytest.mark.parametrize(("text", "message"), [
    ("[sandbox]\nmode = 'bublewrap'\n",
     r":2: \[sandbox\] mode='bublewrap' should be one of auto, bubblewrap, landlock, container, none; did you mean "
     r"bubblewrap\?"),
    ("[sandbox.gate]\nnetwork = true\n", r":2: \[sandbox.gate\] network=True should be one of none, allow, open"),
    ("[agents.a]\nargv = ['a']\nwrite = ['cache']\n",
     r":3: \[agents.a\] write=\['cache'\] should be a list of paths, each absolute or starting with ~/, not 'cache'"),
    ("[agents.a]\nargv = ['a']\nsandbox = 'non'\n", r":3: \[agents.a\] sandbox='non' should be .*; did you mean none"),
    ("[sandbox]\nhosts = 'a'\n", r":2: \[sandbox\] hosts='a' should be a list of strings"),
    ("[sandbox]\nhosts = ['a b']\n",
     r":2: .* hosts=\['a b'\] should be a list of hosts, and 'a b' is not a host; write NAME"),
    ("sandbox = 'none'\n", r":1: sandbox should be a table with mode, network, hosts, read, write, hide"),
    ("[sandbox]\ngate = 'none'\n", r":2: sandbox.gate should be a table with mode, network, "),
])
def test_an_invalid_value_is_refused_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(UsageError, match=message):
        check_configuration(tmp_path, print)
