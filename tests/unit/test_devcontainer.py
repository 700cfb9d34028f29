"""devcontainer.json as text: what is read from it, and what is refused with its line."""

from __future__ import annotations

import pytest

from garrison.errors import Refused
from garrison.sandbox import devcontainer

FILE = ".devcontainer/devcontainer.json"
COMMENTED = """\
// one "line"
{
  "image": "a//b", /* two
  lines */ "containerEnv": {"A": "x, }", "B": "${containerEnv:A}!", "P": "/x:${containerEnv:PATH}"},
  "remoteEnv": {"H": "${localEnv:HOME:none}", "W": "${containerWorkspaceFolder}/w", "gone": null,},
  "mounts": [ ], // nothing
}
"""


def test_comments_and_trailing_commas_are_ignored() -> None:
    body = devcontainer.parse(COMMENTED, FILE)
    assert body["image"] == "a//b"
    assert devcontainer.variables_of(body, "/w/s", FILE) == {
        "A": "x, }", "B": "x, }!", "P": "/x:${containerEnv:PATH}", "H": "none", "W": "/w/s/w"}
    devcontainer.check(body, COMMENTED, FILE, ())


@pytest.mark.parametrize(("text", "message"), [
    ('{\n"image": }', f"{FILE}:2: this is not JSON: "),
    ("[]", f"{FILE}:1: this should be an object"),
    ('{\n"privileged": true}', f"{FILE}:2: agents may change this file, so privileged needs your consent: add "
                               'devcontainer = ["privileged"] to '),
    ('{"image": "x",\n"features": {"ghcr.io/x": {}}}', f'{FILE}:2: agents .*or name an image yourself: image = '),
    ('{"mounts": ["source=/,target=/host,type=bind"]}', f"{FILE}:1: agents may change this file, so mounts "),
    ('{\n\n"runArgs": ["--pid=host"]}', f"{FILE}:3: agents may change this file, so runArgs "),
    ('{"dockerComposeFile": "x.yml"}', f"{FILE}:1: dockerComposeFile asks for several containers"),
    ('{"initializeCommand": "rm -rf ~"}', f"{FILE}:1: initializeCommand asks for a command on the machine itself"),
    ('{"securityOpt": ["seccomp=unconfined"]}', f"{FILE}:1: securityOpt asks for "),
])
def test_a_setting_that_agents_may_not_choose_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(Refused, match=message.replace("[", r"\[")):
        devcontainer.check(devcontainer.parse(text, FILE), text, FILE, ())


def test_settings_that_the_user_allows_become_options_and_an_unknown_form_of_a_command_is_refused() -> None:
    body: dict[str, object] = {"mounts": [{"type": "volume", "source": "v", "target": "/v"}, "type=tmpfs,target=/t"],
                               "runArgs": ["--device=/dev/kvm"], "privileged": True}
    devcontainer.check(body, "", FILE, devcontainer.GUARDED)
    assert devcontainer.options_of(body, FILE) == (
        "--privileged", "--mount", "type=volume,source=v,target=/v", "--mount", "type=tmpfs,target=/t",
        "--device=/dev/kvm")
    with pytest.raises(Refused, match="postCreateCommand should be a command, a list of its words, or an object"):
        devcontainer.setup_of({"postCreateCommand": 3}, FILE)


@pytest.mark.parametrize(("commands", "line"), [
    ({}, ""), ({"postCreateCommand": "npm ci && npm test"}, "npm ci && npm test"),
    ({"onCreateCommand": ["echo", "a b"]}, "echo 'a b'"),
    ({"postCreateCommand": {"x": "a", "y": ["b", "$c"]}, "onCreateCommand": "first || true"},
     "(first || true) && (a) && (b '$c')"),
])
def test_its_commands_are_the_set_up(commands: dict[str, object], line: str) -> None:
    assert devcontainer.setup_of(commands, FILE) == line
