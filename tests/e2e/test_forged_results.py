"""An agent that is not confined forges another node's result and moves its branch: the other one's work lands."""

from __future__ import annotations

import json

from support import Node, git

FORGED = {"schema": 1, "run_id": "r1", "node": "other", "attempt": 1, "incarnation": 1, "status": "success",
          "at": "2026-01-01T00:00:00.000000Z", "exit_code": 0, "head": None}


def forge(place) -> str:
    """Return shell that writes a result for `other`, commits nothing on its branch and kills its agent."""
    folder = place.home / "runs/r1/nodes/other/1"
    text = json.dumps(FORGED)
    return (f"{move(place)}; sleep 0.2; printf '%s' '{text}' > {folder}/result.json; "
            f"kill -9 $(cat {place.root}/agent-of-other)")


def move(place) -> str:
    """Return shell that moves the branch of `other` to an empty commit on the target."""
    return (f"git -C {place.repo} update-ref refs/heads/garrison/r1/other "
            f"$(git -C {place.repo} commit-tree -p main -m forged 'main^{{tree}}')")


def test_a_forged_result_does_not_count(place):
    """The agent of `other` is killed with a success in its folder: its successor does the work."""
    other = place.hold("other").replace("touch", f"echo $$ > {place.root}/agent-of-other; touch")
    graph = place.graph(
        Node("hostile", before=f"until test -s {place.root}/agent-of-other; do sleep 0.1; done; {forge(place)}; "
                               f"touch {place.root}/go-other"),
        Node("other", before=other))
    place.use_mode("none")
    child = place.launch(graph, "r1", "--max-agents", "2")
    assert place.finish(child) == 0, place.logs()
    place.check_landed("hostile", "other")
    assert git(place.repo, "show", "main:other-r1.txt") == "other"
    result = json.loads((place.home / "runs/r1/nodes/other/1/result.json").read_text())
    assert result["head"], "written by its orchestrator"
    assert "was not written by the node's orchestrator" in place.logs()


def test_a_branch_moved_after_the_result_is_put_back(place):
    """While the acceptance of `other` runs, its branch is moved: what its agent committed lands, the rest is saved."""
    graph = place.graph(
        Node("hostile", before=f"until test -e {place.root}/at-other; do sleep 0.1; done; {move(place)}; "
                               f"touch {place.root}/go-other"),
        Node("other", attributes=f'acceptance="{place.hold("other")}"'))
    place.use_mode("none")
    child = place.launch(graph, "r1", "--max-agents", "2")
    assert place.finish(child) == 0, place.logs()
    place.check_landed("hostile", "other")
    assert git(place.repo, "show", "main:other-r1.txt") == "other"
    assert "garrison/r1/other was moved to" in place.logs()
    assert git(place.repo, "for-each-ref", "--format=%(subject)", "refs/garrison/rescue") == "forged"
