"""One failed node is tried again, while its run goes on or once that has failed; over the death of the guardian."""

from __future__ import annotations

from support import Node, git, wait_for

MENDED = 'test -f "{mended}" || {{ echo red; exit 3; }}; echo $GARRISON_ATTEMPT > {name}.txt'


def test_a_failed_node_is_retried_while_its_run_goes_on_and_another_one_afterwards(place):
    def command(name: str) -> str:
        return MENDED.format(mended=place.root / f"mended-{name}", name=name)

    graph = place.graph(Node("one", command=command("one")), Node("two", command="echo 2 > two.txt", after=("one",)),
                        Node("three", command=command("three")), Node("four", command=command("four")),
                        Node("slow", command=f"echo slow > slow.txt; {place.hold('slow')}"))
    child = place.launch(graph, "r1", "--max-agents", "5", "--max-rework", "0")
    place.wait_until_held("slow")
    wait_for("they fail", lambda: all(place.nodes()[name]["status"] == "failed" for name in ("one", "three", "four")))
    refused = place.command("agents", "retry", "slow")
    assert refused.returncode == 1 and "it has not failed: it is active" in refused.stderr
    (place.root / "mended-one").touch()
    retried = place.command("agents", "retry", "one")
    place.kill("guardian-crew")
    assert (retried.returncode, retried.stderr) == (0, "one is retried\n")
    wait_for("what waited for it lands", lambda: place.nodes()["two"]["status"] == "validated")
    assert (place.nodes()["three"]["status"], place.nodes()["slow"]["status"]) == ("failed", "active")
    assert git(place.repo, "show", "main:one.txt") == "2"
    place.release("slow")
    assert place.finish(child) == 1, "three and four are still failed"

    late = place.command("agents", "retry", "three")
    assert late.returncode == 1 and "`garrison resume r1 --retry three`" in late.stderr, late.stderr
    refused = place.command("resume", "r1", "--retry", "one")
    assert refused.returncode == 1 and "failed: four, three" in refused.stderr, refused.stderr
    (place.root / "mended-three").touch()
    assert place.command("resume", "r1", "--retry", "three").returncode == 1, "four is still failed"
    assert (place.nodes()["three"]["status"], place.nodes()["four"]["status"]) == ("validated", "failed")
    (place.root / "mended-four").touch()
    assert place.command("resume", "r1", "--retry-failed").returncode == 0
    assert git(place.repo, "show", "main:four.txt") == "2"
