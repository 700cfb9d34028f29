"""The real CLI as agent and as validator in a container, run by
`python -m garrison.testing.isolation --by root -- pytest tests/claude/test_containers.py`. Skipped without Podman."""

from __future__ import annotations

import os

import pytest

from claude_scripts import TOOL, report, steps
from container_support import IMAGE, missing
from garrison.testing.turn import say, use
from support import git


@pytest.mark.skipif(os.environ.get("GARRISON_ISOLATION") != "root", reason="needs `--by root` of the isolation")
def test_an_agent_and_its_validator_work_in_containers(scene):
    if reason := missing():
        pytest.skip(reason)
    place = scene.place
    place.use_mode("container")
    config = place.home / "config.toml"
    config.write_text(config.read_text().replace("[sandbox]\n", f'[sandbox]\nimage = "{IMAGE}"\n', 1))
    verdict = {"verdict": "pass", "reason": "it is there",
               "criteria": [{"criterion": "seen", "met": True, "evidence": "seen"}]}
    look = "{ pwd; cat /etc/debian_version; ls /sys/class/net; hostname; } > seen && git add seen && git commit -qm See"
    scene.players = {"a": steps(say(use("Bash", command=look)), report(), "Done."),
                     "a-validator": steps(say(use("Bash", command="cat seen; hostname; touch mine 2>&1")),
                                          say(use(f"{TOOL}report_verdict", **verdict)), "Done.")}
    child = scene.launch(scene.graph(a="validator=claude"))
    assert place.finish(child) == 0, place.logs()
    assert "SessionStore" not in (scene.folder("a").parent / "output.log").read_text(), "the CLI has its own folder"
    folder, _, network, host = git(place.repo, "show", "main:seen").splitlines()
    assert (folder, network, host) == (str(place.repo), "lo", "sandbox")
    [judged] = [one.asked.result for one in scene.server.messages
                if "You validate" in one.asked.system and one.asked.step == 1]
    assert "sandbox" in judged and "Read-only file system" in judged
