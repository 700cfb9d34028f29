"""Runs that begin below the top of a repository: where agents, acceptance and gate stand."""

from __future__ import annotations

import subprocess

from support import PROGRAM, Node, git


def test_work_begins_in_the_folder_of_its_launch_or_of_its_path(place) -> None:
    """`path` names another folder; one that is not a folder, or links out of the worktree, fails its node."""
    for folder in ("packages/a b", "packages/c"):
        (place.repo / folder).mkdir(parents=True)
        (place.repo / folder / "kept").touch()
    (place.repo / "out").symlink_to("/")
    (place.repo / "garrison.toml").write_text('[launch]\ngate = "false"\n')
    (place.repo / "packages/garrison.toml").write_text(
        '[launch]\ngate_path = "c"\ngate = "false; test -f kept"\nsetup = "echo x > ../set-up"\n')
    (place.repo / ".gitignore").write_text("set-up\n")
    git(place.repo, "add", ".")
    git(place.repo, "commit", "-qm", "packages")
    stand = 'echo "$(git rev-parse --show-prefix)" > here-{name}'
    nodes = [Node(name, command=stand.format(name=name),
                  attributes=f'acceptance="test -f here-{name}", rework=none' + (path and f', path="{path}"'))
             for name, path in (("own", ""), ("other", "packages/c/"), ("top", "."), ("link", "out/etc"),
                                ("absent", "packages/b"))]
    launch = subprocess.run([*PROGRAM, "launch", str(place.graph(*nodes)), "--run", "r1", "--max-agents", "3"],
                            cwd=place.repo / "packages/a b", env=place.env, text=True, capture_output=True, check=False)
    assert launch.returncode == 1, launch.stderr
    assert "agents and acceptance start in packages/a b; to start at the top: --target-dir " in launch.stderr
    found = {name: git(place.repo, "ls-tree", "-r", "--name-only", "main").count(f"here-{name}") for name in
             ("own", "other", "top", "link", "absent")}
    assert found == {"own": 1, "other": 1, "top": 1, "link": 0, "absent": 0}, launch.stdout
    assert [git(place.repo, "show", f"main:{path}") for path in (
        "packages/a b/here-own", "packages/c/here-other", "here-top")] == ["packages/a b/", "packages/c/", ""]
    reasons = {name: node["reason"] for name, node in place.nodes().items() if node["status"] == "failed"}
    assert {name: "is not a folder of the branch that it starts from" in said for name, said in reasons.items()} == {
        "link": True, "absent": True}
    shown = subprocess.run([*PROGRAM, "config", "show", "launch"], cwd=place.repo / "packages/c", env=place.env,
                           text=True, capture_output=True, check=True).stdout
    assert f"{place.repo}/packages/garrison.toml:3" in shown and "cd packages || exit 1; echo x" in shown
    refused = place.command("pipeline", "validate", place.graph(Node("a", attributes="path=\"../x\""), name="wrong"))
    assert refused.returncode == 1 and "a folder of the repository" in refused.stdout + refused.stderr
