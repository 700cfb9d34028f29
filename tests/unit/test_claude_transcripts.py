"""The copy of a session's transcript: what is kept, what is restored, and what is refused."""

from __future__ import annotations

import asyncio
import json

import pytest

from garrison.agents.claude import transcripts
from garrison.agents.claude.transcripts import Mirror, TranscriptStore
from garrison.errors import Refused
from garrison.records.json_io import append_line, append_lines, read_lines

KEY = {"project_key": "-tree", "session_id": "s"}
SUB = {**KEY, "subpath": "subagents/agent-1"}


def said(name: str, parent: str | None = None) -> dict[str, object]:
    return {"type": "user", "uuid": name, "parentUuid": parent}


@pytest.fixture
def place(tmp_path):
    """Return the folder of the CLI and that of the copy."""
    return tmp_path / "config", tmp_path / "copy"


def own(config):
    path = config / "projects/-tree/s.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def test_nothing_to_resume_is_unknown(place):
    config, copy = place
    assert not transcripts.fork(config, copy, "s", "new", "-other") and not (config / "projects/-other").exists()
    assert transcripts.prepare(config, copy, "s", "-tree") == "unknown"
    TranscriptStore(copy).add(KEY, [{"type": "mode"}])
    append_line(own(config), {"type": "mode"})
    assert transcripts.prepare(config, copy, "s", "-tree") == "unknown", "neither has a message"


def test_the_copy_catches_up_after_a_kill(place):
    config, copy = place
    store = TranscriptStore(copy)
    store.add(KEY, [said("1"), {"type": "title", "of": "x"}])
    append_lines(own(config), [said("1"), {"type": "title", "of": "x"}, said("2", "1"), {"type": "title", "of": "y"}])
    for _ in range(2):
        assert transcripts.prepare(config, copy, "s", "-tree") == "own"
        assert store.read(KEY) == read_lines(own(config))


def test_a_missing_transcript_is_restored_with_its_subagents(place):
    config, copy = place
    store = TranscriptStore(copy)
    store.add(KEY, [said("1"), said("2", "1"), said("2", "1"), {"type": "user", "text": "\ud800"}])
    store.add(SUB, [said("a"), {"type": "agent_metadata", "agentType": "old"}])
    store.add(SUB, [{"type": "agent_metadata", "agentType": "helper"}])
    own(config).parent.joinpath(".s.jsonl.1-1.tmp").write_text("of a killed one")
    assert transcripts.prepare(config, copy, "s", "-tree") == "restored"
    assert read_lines(own(config)) == [said("1"), said("2", "1"), {"type": "user", "text": "\ud800"}]
    folder = own(config).parent / "s/subagents"
    assert read_lines(folder / "agent-1.jsonl") == [said("a")]
    assert json.loads((folder / "agent-1.meta.json").read_text()) == {"agentType": "helper"}
    assert sorted(path.name for path in own(config).parent.iterdir()) == ["s", "s.jsonl"]
    assert own(config).stat().st_mode & 0o777 == 0o600
    assert transcripts.prepare(config, copy, "s", "-tree") == "own"
    assert len(store.read(SUB) or []) == 3, "and nothing is copied back as new"


def test_the_copy_of_a_session_from_another_place_moves_to_where_it_runs_now(place):
    """An earlier version ran the CLI at the path of the worktree, as a user's terminal still does."""
    config, copy = place
    TranscriptStore(copy).add(KEY, [said("1")])
    TranscriptStore(copy).add(SUB, [said("a")])
    for project in ("-home-checkout", "-tree", "-home-checkout"):
        transcripts.remove_own(config, "s")
        assert transcripts.prepare(config, copy, "s", project) == "restored"
        assert read_lines(config / "projects" / project / "s.jsonl") == [said("1")]
        assert (config / "projects" / project / "s/subagents/agent-1.jsonl").is_file()
        assert [path.parent.name for path in copy.glob("*/s.jsonl")] == [project]


def test_a_transcript_without_its_first_entries_is_restored(place):
    """It was removed while the CLI still wrote: the rest continues what only the copy has."""
    config, copy = place
    TranscriptStore(copy).add(KEY, [said("1"), said("2", "1")])
    append_lines(own(config), [said("3", "2")])
    assert transcripts.prepare(config, copy, "s", "-tree") == "restored"
    assert [entry["uuid"] for entry in read_lines(own(config))] == ["1", "2", "3"]


@pytest.mark.parametrize("gone", [False, True])
def test_a_fork_leaves_out_the_system_prompt(place, gone):
    """It uses the CLI's own transcript, else the copy that an attempt kept, and changes neither."""
    config, copy = place
    prompt = {"type": "attachment", "uuid": "2", "parentUuid": "1", "attachment": {"type": "prompt_snapshot"}}
    entries = [{"type": "mode"}, said("1"), prompt, said("3", "2"), said("4", "3")]
    if gone:
        TranscriptStore(copy / "a/1/claude/transcripts").add(KEY, entries)
    else:
        append_lines(own(config), entries)
    assert transcripts.fork(config, copy, "s", "new", "-other")
    made = read_lines(config / "projects/-other/new.jsonl")
    assert [(one["uuid"], one["parentUuid"], one["sessionId"]) for one in made] == [
        ("1", None, "new"), ("3", "1", "new"), ("4", "3", "new")]
    assert gone or read_lines(own(config)) == entries
    assert transcripts.prepare(config, copy, "new", "-tree") == "own"


def test_only_the_torn_line_is_lost(place):
    _config, copy = place
    store = TranscriptStore(copy)
    store.add(KEY, [said("1")])
    with store.path(KEY).open("a") as file:
        file.write('{"type": "us')
    store.add(KEY, [said("2", "1")])
    assert store.read(KEY) == [said("1"), said("2", "1")]


@pytest.mark.parametrize("key", [
    {"project_key": "..", "session_id": "s"}, {"project_key": "p", "session_id": "a/b"},
    {**KEY, "subpath": "../../x"}, {**KEY, "subpath": "/etc/x"}])
def test_no_key_leads_out_of_the_folder(tmp_path, key):
    with pytest.raises(Refused):
        TranscriptStore(tmp_path).path(key)


def test_the_mirror_loads_nothing_for_the_sdk(tmp_path):
    mirror = Mirror(tmp_path)
    asyncio.run(mirror.append(KEY, [said("1")]))
    assert asyncio.run(mirror.load(KEY)) is None
    assert mirror.read(KEY) == [said("1")]
