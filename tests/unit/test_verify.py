"""`garrison verify` on histories from files: valid, broken, damaged and missing ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from test_run_checker import SINCE, Story, tell

from garrison.cli.verify import EXIT_SECONDS, settle, verify
from garrison.errors import UsageError
from garrison.records import journal, run
from garrison.records.run import Launch, RunFiles
from garrison.testing.checker import BrokenPromise, Promise


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return tell(tmp_path_factory.mktemp("story"))


def call(story: Story, folder: Path, *words: str, lines: list[str] | None = None) -> Result:
    """Call the command on the story's events, or on other lines."""
    events, attested, costs = folder / "events.jsonl", folder / "attestations", folder / "costs.jsonl"
    events.write_text("\n".join(lines if lines is not None else map(json.dumps, story.lines)))
    attested.write_text("\n".join([f"since {SINCE}", *story.attested]))
    costs.write_text("\n".join(map(json.dumps, story.costs)))
    return CliRunner().invoke(verify, ["--events", str(events), "--attestations", str(attested), "--costs", str(costs),
                                       *words], standalone_mode=False)


def test_findings_are_printed_and_set_the_exit_code(sound: Story, tmp_path: Path) -> None:
    found = call(sound, tmp_path)
    assert found.return_value == 0, found.output
    assert "0 findings; promises kept: record, tested, once, lives, kept, limits, money, clean" in found.output
    spoiled = [json.dumps(line) for line in sound.lines if line["kind"] != "verdict"]
    found = call(sound, tmp_path, "--json", lines=spoiled)
    assert found.return_value == 1
    assert {row["promise"] for row in json.loads(found.output)} == {"tested"}


@pytest.mark.parametrize(("lines", "told"), [
    ([], "contains no event of the run"),
    (["{"], "line 1 is not one of"),
    (['{"at": 1}'], "line 1 is not one of"),
    (['{"at":"","journal":"merge-queue","by":"","seq":1,"kind":"enq","node":"","data":{"entry":"a"}}'],
     "an event lacks a field of its kind"),
    (['{"at":"","journal":"guardian","by":"","seq":1,"kind":"node","node":"","data":[]}'], "line 1 is not one of"),
    (['{"at":"","journal":"launch","by":"","seq":1,"kind":"launch","node":"","data":{"launch":"{"}}'],
     "an event lacks a field of its kind"),
])
def test_a_damaged_history_is_refused_in_one_line(sound: Story, tmp_path: Path, lines: list[str], told: str) -> None:
    found = call(sound, tmp_path, "--repository", str(sound.repo), lines=lines)
    assert isinstance(found.exception, UsageError), found.output
    assert told in str(found.exception)
    assert isinstance(call(sound, tmp_path, lines=lines).exception, UsageError)
    assert "\n" not in str(found.exception)


@pytest.mark.parametrize(("words", "told"), [(("--repository", "nothing"), "is not a git repository"),
                                             (("--costs", "bad"), "not one of `garrison cost --calls`")])
def test_a_missing_repository_or_a_damaged_file_is_refused(sound: Story, tmp_path: Path, words: tuple[str, str],
                                                           told: str) -> None:
    (tmp_path / "bad").write_text("1\n")
    found = call(sound, tmp_path, words[0], str(tmp_path / words[1]))
    assert isinstance(found.exception, UsageError)
    assert told in str(found.exception)


def test_an_unknown_run_is_no_broken_promise(tmp_path: Path) -> None:
    found = CliRunner().invoke(verify, ["nothing", "--home", str(tmp_path)], standalone_mode=False)
    assert isinstance(found.exception, UsageError), found.output
    assert found.exception.exit_code == 2


LEFT = BrokenPromise(Promise.CLEAN, "process 7 is still there")
LOST = BrokenPromise(Promise.KEPT, "a commit is lost")


@pytest.mark.parametrize(("looks", "found", "waits"), [
    ([[LEFT], [LEFT], []], [], 2),
    ([[LOST, LEFT], [LOST]], [LOST], 1),
    ([[LOST]], [LOST], 0),
])
def test_an_exiting_process_is_waited_for(looks: list[list[BrokenPromise]], found: list[BrokenPromise],
                                          waits: int) -> None:
    waited: list[float] = []
    assert settle(iter(looks).__next__, waited.append) == found
    assert len(waited) == waits
    waited.clear()
    assert settle(lambda: [LEFT], waited.append) == [LEFT], "a process that stays is a finding"
    assert sum(waited) == pytest.approx(EXIT_SECONDS)


def test_a_run_with_lost_records_in_the_queue_is_not_judged(tmp_path: Path) -> None:
    path = tmp_path / "merge-queue/repo/main/journal.jsonl"
    path.parent.mkdir(parents=True)
    files = RunFiles(tmp_path, "mine")
    files.root.mkdir(parents=True)
    run.save(files.launch, Launch("mine", "", "", "", "2026-01-01T00:00:00.000000Z", ""))
    enqueued = {"entry": "a", "run": "mine", "node": "n"}
    journal.append_shared(path, "p@r#1", "enq", enqueued, "2026-01-01T00:00:01.000000Z")
    journal.replace_shared(path, journal.Entry(1, 1, "p@r#1", "2026-01-01T00:00:02.000000Z", "snapshot", {}))
    found = CliRunner().invoke(verify, ["mine", "--home", str(tmp_path)], standalone_mode=False)
    assert isinstance(found.exception, UsageError), found.output
    assert f"records 1 to 1 of {path} are gone" in str(found.exception)
