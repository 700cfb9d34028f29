"""Gates by path in a real queue: what runs, what lands, which entry is rejected, and that the checker agrees."""

from __future__ import annotations

import json
import re

import pytest
from merge_support import World, await_gate, git

from garrison.merge import commands
from garrison.merge.gate import attestations_of
from garrison.merge.history import read_history
from garrison.merge.preflight import preflight
from garrison.merge.queue import MergeQueue
from garrison.records import journal
from garrison.records.names import INTEGRATION
from garrison.testing.checker import CheckedRepository, check, read_attestations, read_events, since_whole

RULES = """\
whole_gate_every = {every}
[[gates]]
name = "py"
paths = ["py/**"]
command = "echo py >> {ran}; test ! -e py/bad"
[[gates]]
name = "js"
paths = ["js/**"]
command = "echo js >> {ran}; test ! -e js/bad"
needs = ["py"]
[[gates]]
name = "go"
paths = ["go/**"]
command = "echo go >> {ran}; test ! -e go/bad"
"""


class Mono(World):
    """A queue whose target declares three gates; `ran` lists what the gates ran, in order."""

    def __init__(self, tmp, *, every: int = 10) -> None:
        super().__init__(tmp, gate=None)
        self.ran = tmp / "ran"
        self.declare(every)
        self.start = self.tip()
        commands.reconfigure(self.queue, no_gate=False,
                             gate=f"echo whole >> {self.ran}; test ! -e py/bad && test ! -e js/bad && test ! -e broken")

    def declare(self, every: int, text: str = RULES) -> None:
        self.branch("main", {"garrison.toml": text.format(every=every, ran=self.ran)})
        git(self.repo, "reset", "-q", "--hard", "main")

    def gates_ran(self) -> list[str]:
        return self.ran.read_text().split() if self.ran.exists() else []

    def findings(self, lied: list[str] | None = None) -> list[str]:
        """Return what the checker finds in this queue's journal; `lied`: the gates that its verdicts claim."""
        launch = {"repo": str(self.repo), "run_id": "r", "land": "node", "base": "main", "base_oid": self.start}
        events = [json.dumps({"at": "", "journal": "launch", "by": "", "seq": 1, "kind": "launch", "node": "",
                              "data": {"launch": json.dumps(launch)}})]
        for each in journal.read_all(self.queue.path):
            data = each.data | ({"gates": lied} if lied and each.kind == "verdict" else {})
            events.append(json.dumps({"at": each.at, "journal": "merge-queue", "by": "x", "seq": each.seq,
                                      "kind": each.kind, "node": "", "data": data, "queue": "main"}))
        return [str(each) for each in check(read_events(events), CheckedRepository(self.repo), self.attestations())]

    def attestations(self):
        return read_attestations([attestations_of(self.queue.folder)])


def test_an_entry_runs_the_gates_of_its_paths_and_what_no_rule_names_the_whole_one(tmp_path):
    world = Mono(tmp_path)
    expected = []
    for name, files, gates in (("a", ["py/x"], ["py", "js"]), ("b", ["js/x"], ["js"]), ("c", ["js/y", "go/y"],
                               ["js", "go"]), ("d", ["go/z", "README"], ["whole"]), ("e", ["go/e"], ["go"])):
        world.add(name, dict.fromkeys(files, f"{name}\n"))
        world.drain()
        assert world.entry(name).status == "landed", world.entry(name).reason
        expected += gates
        assert world.gates_ran() == expected
    assert [run.gates for run in world.attestations().runs] == [
        {"py", "js"}, {"js"}, {"js", "go"}, frozenset(), {"go"}]
    assert "gates js,go " in git(world.repo, "log", "-1", "--format=%B", "main~2")
    assert "js/bad" in read_history(world.queue.path)[1].tested.gate
    assert world.findings() == []
    landed = since_whole(CheckedRepository(world.repo), "refs/heads/main", world.attestations())
    assert landed == (world.entry("e").id,)
    world.branch("work", {"go/x": "x\n"})
    world.enqueue(INTEGRATION, branch="work")
    world.drain()
    assert (world.entry(INTEGRATION).status, world.gates_ran()) == ("landed", [*expected, "whole"]), "a run as a whole"


def test_the_rules_are_the_targets_and_work_that_changes_them_is_tested_as_a_whole(tmp_path):
    world = Mono(tmp_path)
    world.add("cheat", {"py/bad": "x\n", "garrison.toml": RULES.format(every=9, ran=world.ran).replace(
        "test ! -e py/bad", "true")})
    world.drain()
    assert world.entry("cheat").status == "rejected"
    assert set(world.gates_ran()) == {"whole"}
    world.declare(10, "[[gates]]\nname = 3\n")
    world.add("fine", {"py/x": "x\n"})
    world.drain()
    assert world.gates_ran()[-1] == "whole", "rules that cannot be read test nothing less"


def test_a_red_gate_rejects_an_entry_only_if_the_target_passes_the_whole_gate_and_that_one(tmp_path):
    world = Mono(tmp_path)
    world.add("bad", {"go/bad": "x\n"})
    world.drain()
    assert world.entry("bad").status == "rejected", world.entry("bad").reason
    assert world.gates_ran() == ["go", "whole", "go", "go"], "its own, the bare target's two, and its own again"
    world.add("good", {"go/good": "x\n"})
    world.land("good")
    assert world.findings() == []


def test_a_break_that_paths_did_not_select_pauses_the_queue_and_names_the_landings_since(tmp_path):
    world = Mono(tmp_path)
    world.declare(10, RULES.replace('needs = ["py"]\n', "").replace("test ! -e go/bad", "test ! -e go/bad; touch x"))
    commands.reconfigure(world.queue, gate=f"echo whole >> {world.ran}; test ! -e go/breaks-py")
    world.add("breaks", {"go/breaks-py": "x\n"})
    world.drain()
    assert world.entry("breaks").status == "landed", "its own gate does not know"
    world.branch("victim", {"py/bad": "x\n"})
    world.enqueue("victim")
    with pytest.raises(AssertionError, match="base_red"):
        world.drain()
    pause = world.queue.state.pause
    assert pause is not None and f"landed since it last passed as a whole: {world.entry('breaks').id}" in pause.detail
    assert world.entry("victim").status == "queued"


def test_the_whole_gate_runs_for_one_in_n_entries_and_a_pre_flight_resets_the_count(tmp_path):
    world = Mono(tmp_path, every=3)
    for number in range(6):
        world.add(f"n{number}", {f"go/{number}": "x\n"})
        world.drain()
    assert world.gates_ran() == ["go", "go", "whole"] * 2
    assert world.findings() == []
    for number in range(6, 8):
        world.add(f"n{number}", {f"go/{number}": "x\n"})
        world.drain()
    with world.queue.lock():
        world.queue.compact()
    world.queue = MergeQueue(world.home, world.repo)
    said: list[str] = []
    preflight(world.queue, world.queue.state.config, trees=world.trees, environment=world.environment,
              progress=said.append)
    told = "gates by path: py, js, go (garrison.toml of main); the whole gate runs for at least one landing in 3"
    assert told in said
    for number in range(8, 10):
        world.add(f"n{number}", {f"go/{number}": "x\n"})
        world.drain()
    assert world.gates_ran()[6:] == ["go", "go", "whole", "go", "go"]


def test_the_entries_of_a_batch_together_select_the_gates_and_each_that_is_red_is_found(tmp_path):
    world = Mono(tmp_path, every=50)
    world.bounds = {"short_gate": 0.0}
    world.add("first", {"go/first": "x\n"})  # so that the queue knows how long its gates take
    world.drain()
    for name, file in (("a", "py/a"), ("b", "js/b"), ("c", "go/bad"), ("d", "go/d")):
        world.add(name, {file: "x\n"}, world.start)
    world.drain()
    assert [world.entry(name).status for name in "abcd"] == ["landed", "landed", "rejected", "landed"]
    assert any(len(gates) == 3 for gates in (run.gates for run in world.attestations().runs)), "none was a batch"
    assert world.findings() == []


def test_a_run_of_gates_by_path_is_adopted_by_the_next_processor(tmp_path):
    world = Mono(tmp_path)
    world.declare(10, RULES.replace("echo go", f"until test -e {tmp_path}/open; do sleep 0.02; done; echo go"))
    world.add("slow", {"go/x": "x\n"})
    processor = world.processor()
    await_gate(processor)
    processor.close()
    (tmp_path / "open").touch()
    world.drain()
    assert (world.entry("slow").status, world.gates_ran()) == ("landed", ["go"])


def test_the_checker_finds_a_landing_that_passed_less_than_its_paths_select_or_the_whole_gate_too_rarely(tmp_path):
    world = Mono(tmp_path, every=3)
    for number in range(3):
        world.add(f"n{number}", {f"py/{number}": "x\n"})
        world.drain()
    assert world.gates_ran() == ["py", "js", "py", "js", "whole"]
    world.declare(50)
    assert world.findings() == [], "what the target declared when they landed counts"
    path = world.queue.folder / "attestations"
    honest = path.read_text()
    path.write_text(honest.replace(" py,js\n", " py\n"))
    found = [each for each in world.findings(lied=["py"]) if "had not passed the gates that its paths select" in each]
    assert len(found) == 2 and "(js, py)" in found[0]
    path.write_text(re.sub(r"(?m)^(\w+ \w+ 0 0)$", r"\1 py,js", honest))
    found = world.findings(lied=["py", "js"])
    assert len(found) == 1 and "3 entries landed on main without the whole gate" in found[0]
    path.write_text(honest.replace(" py,js\n", " go\n"))
    assert len([each for each in world.findings() if "had not passed the gate" in each]) == 2
