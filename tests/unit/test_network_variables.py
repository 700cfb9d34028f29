"""Variables and notes about networks: dummy keys, the way to the proxy, and what a launch reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from garrison.node.places import network_notes
from garrison.processes.runtime import Runtime
from garrison.sandbox.network import access_of, environment_of, find_keys, needs_proxy, withheld_of
from garrison.sandbox.place import Mode, Network, Rights
from garrison.sandbox.proxy.registration import ApiAccess, Registration

ENV = {"ANTHROPIC_API_KEY": "k1", "ANTHROPIC_AUTH_TOKEN": "k2", "OPENAI_API_KEY": "k3", "GOOGLE_API_KEY": "k4",
       "OPENAI_BASE_URL": "http://10.0.0.1/v1/", "PATH": "/bin", "MAVEN_OPTS": "-Xmx1g"}


@pytest.mark.parametrize(("network", "mode", "env", "needed"), [
    (Network.ALLOW, Mode.NONE, {}, True), (Network.ALLOW, Mode.BUBBLEWRAP, {}, True),
    (Network.OPEN, Mode.NONE, ENV, False), (Network.OPEN, Mode.BUBBLEWRAP, ENV, True),
    (Network.OPEN, Mode.BUBBLEWRAP, {}, False), (Network.NONE, Mode.BUBBLEWRAP, ENV, False)])
def test_a_proxy_is_needed_for_hosts_and_for_keys(
        network: Network, mode: Mode, env: dict[str, str], needed: bool) -> None:
    assert needs_proxy(Rights(network=network), mode, env) is needed


def test_the_first_key_of_an_api_counts_and_all_are_withheld() -> None:
    assert [(api.name, key.name, value) for api, key, value in find_keys(ENV)] == [
        ("anthropic", "ANTHROPIC_API_KEY", "k1"), ("openai", "OPENAI_API_KEY", "k3"),
        ("google", "GOOGLE_API_KEY", "k4")]
    assert withheld_of(ENV) == ENV.keys() - {"PATH", "MAVEN_OPTS"}


def test_an_access_has_the_users_url_and_the_header_of_the_api() -> None:
    found = {api.name: access_of(api, key, value, ENV) for api, key, value in find_keys(ENV)}
    assert list(found.values()) == [
        ApiAccess(found["anthropic"].api, "https://api.anthropic.com", "x-api-key", "k1"),
        ApiAccess(found["openai"].api, "http://10.0.0.1/v1", "authorization", "Bearer k3"),
        ApiAccess(found["google"].api, "https://generativelanguage.googleapis.com", "x-goog-api-key", "k4")]
    token = {"CLAUDE_CODE_OAUTH_TOKEN": "k5"}
    [(api, key, value)] = find_keys(token)
    assert access_of(api, key, value, token).key == "Bearer k5" and withheld_of(token) == token.keys()
    assert not any(key in str(found) for key in ("k1", "k3", "k4")), "a log must not show it"


def test_variables_lead_to_the_proxy_with_dummy_keys_which_a_proxy_of_the_user_does_not_serve() -> None:
    found = environment_of(Registration("r", "a", 1, "f", hosts=("x",)), ENV, 61280)
    assert found["HTTPS_PROXY"] == found["http_proxy"] == "http://127.0.0.1:61280"
    assert found["NO_PROXY"] == "localhost,127.0.0.1,::1"
    assert found["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:61280/anthropic"
    assert found["OPENAI_BASE_URL"] == found["OPENAI_API_BASE"] == "http://127.0.0.1:61280/openai/v1"
    assert found["GOOGLE_GEMINI_BASE_URL"] == "http://127.0.0.1:61280/google"
    assert found["ANTHROPIC_API_KEY"].startswith("sk-ant-")
    assert "ANTHROPIC_AUTH_TOKEN" not in found
    assert found["MAVEN_OPTS"].startswith("-Xmx1g -Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort=61280")
    assert not {"k1", "k2", "k3", "k4"} & set(found.values())
    found = environment_of(Registration("r", "a", 1, "f", secret="s"), {**ENV, "NO_PROXY": "corp"}, 4000)
    assert found["no_proxy"] == found["NO_PROXY"] == "corp,localhost,127.0.0.1,::1"
    assert "HTTPS_PROXY" not in found
    assert found["OPENAI_API_KEY"] == "sk-garrison-s"


# ---- notes of a launch about networks and keys that are not protected


@pytest.mark.parametrize(("config", "environ", "notes"), [
    ("", {}, []),
    ('[sandbox]\nmode = "none"\nnetwork = "allow"', {}, ["agent claude has network = \"allow\" but no sandbox"]),
    ('[sandbox]\nmode = "bubblewrap"\n[agents.claude]\nlogin = "file"', {},
     ["agent claude works with a copy of its CLI's log-in"]),
    ('[sandbox]\nmode = "bubblewrap"', {}, []),
    ('[sandbox]\nmode = "bubblewrap"', {"ANTHROPIC_API_KEY": "k"}, []),
    ('[sandbox]\nmode = "bubblewrap"\nnetwork = "none"', {"ANTHROPIC_API_KEY": "k"},
     ["agent claude has network = \"none\": it cannot reach its model"]),
    ('[sandbox]\nmode = "bubblewrap"\nnetwork = "allow"', {"CLAUDE_CODE_OAUTH_TOKEN": "k"}, []),
])
def test_a_launch_names_what_is_not_protected(tmp_path: Path, config: str, environ: dict[str, str],
                                              notes: list[str]) -> None:
    (tmp_path / "config.toml").write_text(config)
    found = list(network_notes(Runtime.real(tmp_path, {"GARRISON_SANDBOX": "none"} if not config else environ),
                               ["claude", "command"] if "log-in" in str(notes) else ["claude"]))
    assert len(found) == len(notes), found
    assert all(text.startswith(start) for text, start in zip(found, notes, strict=True))
