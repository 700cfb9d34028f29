"""The state of a merge queue, replayed from its journal."""

from __future__ import annotations

import pytest

from garrison.errors import ForbiddenTransition, NotFound, Refused, UsageError
from garrison.merge import records
from garrison.merge.commands import explain_no_retry
from garrison.merge.config import QueueConfig
from garrison.merge.entry import (
    FINAL,
    NO_OPTIONS,
    TRANSITIONS,
    EntryOptions,
    MergeEntry,
    ResolvedOptions,
    check_transition,
    entry_id,
)
from garrison.merge.history import landings_in
from garrison.merge.queue import resolve_options
from garrison.merge.records import EntryCancelled, LandingStarted
from garrison.merge.state import QueueState
from garrison.records.journal import Entry as Stored
from garrison.records.record import from_data
from garrison.values import asdict, fields_of, replace


class Journal:
    """A journal in memory; `add` takes a record as it is stored."""

    def __init__(self) -> None:
        self.records: list[Stored] = []
        self.state = QueueState()

    def add(self, kind, **data):
        self.state.check(records.decode(kind, data))
        self.records.append(Stored(len(self.records) + 1, 1, "t", f"2026-01-01T00:00:00.{len(self.records):06d}Z", kind,
                                   data))
        self.state.apply(self.records[-1])
        return self.state

    def verdict(self, result, *, name="e", of="entry", tree="t", reason="", log="l", **more):
        self.add("verdict", entry=name, of=of, tree=tree, command="k", result=result, reason=reason, log=log, **more)

    def enq(self, name, node="n", attempt=1, supersedes=(), **more):
        return self.add("enq", entry=name, run="r", node=node, attempt=attempt, branch="b", oid=name * 10,
                        target="main", repo="/r", recipient="", supersedes=list(supersedes), **more)

    def start_gate(self, name, tree="t"):
        self.add("state", entry=name, status="candidate", base="b", tree=tree, commit="c")
        self.add("test", entry=name, of="entry", number=1, job=f"{name}.1", tree=tree, commit="c", slot=1, command="k",
                 log="l")

    def land(self, names, *, tree, old):
        for name in names:
            self.add("state", entry=name, status="candidate", base=old, tree=tree, commit=f"c{name}")
        commits = [f"c{name}" for name in names]
        self.add("landing", entry=names[0], entries=list(names), commits=commits, old=old, new=commits[-1])
        for name, commit in zip(names, commits, strict=True):
            self.add("landed", entry=name, commit=commit, old=old)


@pytest.fixture
def journal() -> Journal:
    return Journal()


def testing() -> Journal:
    """Return the journal of a queue whose gate tests entry `e`."""
    journal = Journal()
    journal.enq("e")
    journal.start_gate("e")
    return journal


def test_every_status_of_the_table_is_known_and_final_ones_stay():
    assert {after for following in TRANSITIONS.values() for after in following} <= set(TRANSITIONS)
    assert {"landed", "undone", "conflict", "rejected", "cancelled", "superseded"} == FINAL
    for old, following in TRANSITIONS.items():
        for new in TRANSITIONS:
            if new in following:
                check_transition("e", old, new)
            else:
                with pytest.raises(ForbiddenTransition):
                    check_transition("e", old, new)


def test_an_id_depends_on_queue_run_node_attempt_and_commit():
    ids = {entry_id(*key) for key in (("q", "r", "n", 1, "a"), ("q", "r", "n", 1, "b"), ("q", "r", "n", 2, "a"),
                                      ("q", "s", "n", 1, "a"), ("p", "r", "n", 1, "a"))}
    assert len(ids) == 5
    assert entry_id("q", "r", "n", 1, "a") == entry_id("q", "r", "n", 1, "a")


def test_a_whole_landing(journal):
    journal.add("config", gate="make", setup=None, no_gate=False, timeout=10.0, lock_files=[])
    journal.enq("e")
    journal.start_gate("e")
    assert journal.state.gate.job == "e.1"
    journal.verdict("green")
    assert journal.state.gate is None
    assert ("t", "k") in journal.state.green
    journal.add("landing", entry="e", old="b", new="c")
    assert journal.state.landing.new == "c"
    journal.add("landed", entry="e", commit="c", old="b", owed=["/checkout"])
    state = journal.state
    assert state.landing is None
    assert (state.entries["e"].status, state.entries["e"].landed_at) == ("landed", journal.records[-1].at)
    assert [(stale.path, stale.old, stale.new) for stale in state.stale_checkouts] == [("/checkout", "b", "c")]
    journal.add("moved", entry="", path="/checkout", old="b", new="c")
    assert state.stale_checkouts == ()
    assert [(outcome.type, outcome.seq) for outcome in state.outcomes] == [
        ("VALIDATION_PASSED", 5), ("MERGE_COMPLETE", 7)]
    assert state.unfinished() == []


def test_a_forbidden_step_is_refused_before_it_is_written(journal):
    journal.enq("e")
    with pytest.raises(ForbiddenTransition):
        journal.state.check(LandingStarted(("e",), "a", "b", ("b",)))
    with pytest.raises(NotFound):
        journal.state.check(EntryCancelled("unknown"))
    journal.add("cancel", entry="e")
    with pytest.raises(ForbiddenTransition):
        journal.add("state", entry="e", status="queued")
    assert journal.state.entries["e"].status == "cancelled"


@pytest.mark.parametrize("uncounted", [False, True])
def test_a_run_without_a_verdict_says_why_while_the_next_one_tests(uncounted):
    """Seen: with a full disk a node was "testing" for minutes, and no view mentioned six runs without a verdict."""
    journal = testing()
    journal.verdict("lost", reason="its disk is full", code=1, uncounted=uncounted)
    journal.add("test", entry="e", of="entry", number=2, job="e.2", tree="t", commit="c", slot=1, command="k", log="l")
    assert (journal.state.entries["e"].status, journal.state.entries["e"].reason) == ("testing", "its disk is full")
    journal.verdict("green")
    assert journal.state.entries["e"].reason == ""


def test_superseding_forgets_the_running_gate_and_the_preflight_of_another_launch_does_not():
    journal = testing()
    journal.enq("f", attempt=2, supersedes=["e"])
    assert journal.state.entries["e"].status == "superseded"
    assert journal.state.gate is None
    journal.verdict("green")
    assert journal.state.entries["e"].status == "superseded"
    assert journal.state.outcomes == []
    journal = testing()
    journal.verdict("green", name="", of="preflight", tree="b", log="")
    assert journal.state.gate.job == "e.1"
    assert ("b", "k") in journal.state.green
    assert journal.state.verdicts.durations == []


def test_a_pause_returns_the_entry_in_the_same_record_and_a_new_gate_lifts_it():
    journal = testing()
    journal.verdict("missing", reason="?")
    journal.verdict("missing", of="base", tree="b", reason="?")
    assert journal.state.base.result == "missing"
    journal.add("pause", entry="e", reason="gate_broken", detail="?", tip="b")
    assert (journal.state.entries["e"].status, journal.state.entries["e"].verdict) == ("queued", "")
    assert journal.state.pause.reason == "gate_broken"
    journal.add("config", gate="make", setup=None, no_gate=False, timeout=10.0, lock_files=[])
    assert journal.state.pause is None


@pytest.mark.parametrize(("kind", "data", "status"), [
    ("foreign", {"old": "b", "reason": "moved"}, "queued"),
    ("unlanded", {"old": "b", "reason": "in the way", "files": ["f"]}, "landing_blocked")])
def test_a_landing_that_did_not_happen(journal, kind, data, status):
    journal.enq("e")
    journal.add("state", entry="e", status="candidate", base="b", tree="t", commit="c")
    journal.add("landing", entry="e", old="b", new="c")
    journal.add(kind, entry="e", **data)
    assert journal.state.landing is None
    assert journal.state.stale_checkouts == ()
    assert journal.state.entries["e"].status == status


def test_a_record_of_a_newer_version_is_counted_and_changes_nothing_else(journal):
    journal.enq("e")
    before = fields_of(journal.state)
    journal.state.apply(Stored(2, 4, "t", "2026-01-01T00:00:01.000000Z", "hologram", {"entry": "e"}))
    assert (journal.state.seq, journal.state.epoch) == (2, 4)
    changed = {name for name, value in fields_of(journal.state).items() if before[name] != value}
    assert changed == {"seq", "epoch", "updated_at"}


# ---- options of entries, and the history of landings


def test_an_entry_inherits_the_options_of_its_predecessor_that_did_not_land(journal):
    journal.enq("dep", node="dep")
    journal.enq("a", priority=4, depends_on=["dep"], strategy="squash")
    assert resolve_options(journal.state, NO_OPTIONS, "r", "n") == ResolvedOptions(4, ("dep",), "squash")
    assert resolve_options(journal.state, EntryOptions(0, (), "rebase"), "r", "n") == ResolvedOptions(0, (), "rebase")
    assert resolve_options(journal.state, NO_OPTIONS, "r", "other", "ff-only") == ResolvedOptions(strategy="ff-only")
    journal.add("landed", entry="a", commit="c", old="0")
    assert resolve_options(journal.state, NO_OPTIONS, "r", "n") == ResolvedOptions()


def test_dependencies_are_ids_or_nodes_and_never_a_cycle(journal):
    journal.enq("a", node="a")
    journal.enq("b", node="b", depends_on=["a"])
    assert resolve_options(journal.state, EntryOptions(depends_on=("b", "a", "b")), "r", "c").depends_on == ("b", "a")
    with pytest.raises(NotFound, match="no node unknown"):
        resolve_options(journal.state, EntryOptions(depends_on=("unknown",)), "r", "c")
    with pytest.raises(Refused, match="would wait for itself"):
        resolve_options(journal.state, EntryOptions(depends_on=("b",)), "r", "a")
    with pytest.raises(Refused, match="would wait for itself"):
        resolve_options(journal.state, EntryOptions(depends_on=("a",)), "r", "a")


def test_a_dependency_is_met_by_any_later_landing_of_its_node(journal):
    journal.enq("a1", node="a")
    journal.enq("b", node="b", depends_on=["a1"])
    needs = journal.state.unmet_dependencies(journal.state.entries["b"])
    assert [entry.id for entry in needs] == ["a1"]
    journal.enq("a2", node="a", supersedes=["a1"])
    assert [entry.id for entry in journal.state.unmet_dependencies(journal.state.entries["b"])] == ["a2"]
    journal.add("landed", entry="a2", commit="c", old="0")
    journal.enq("a3", node="a")
    assert journal.state.unmet_dependencies(journal.state.entries["b"]) == []


@pytest.mark.parametrize("options", [EntryOptions(priority=10), EntryOptions(priority=-10),
                                     EntryOptions(strategy="octopus")])
def test_options_that_do_not_exist_are_refused(options):
    with pytest.raises(UsageError):
        options.check()


def test_only_a_failed_entry_is_retried_and_every_other_status_has_its_own_answer():
    entry = MergeEntry("e", "r", "n", 1, "b", "o", "main")
    answers = {status: explain_no_retry(replace(entry, status=status)) for status in TRANSITIONS}
    assert {status for status, why in answers.items() if why is None} == {"conflict", "rejected", "cancelled", "undone"}
    assert len({why for why in answers.values() if why}) == len(answers) - 4


def test_an_entry_that_supersedes_one_waiting_for_approval_waits_for_it_as_well(journal):
    journal.enq("a")
    journal.add("state", entry="a", status="held", reason="wait")
    journal.enq("b", supersedes=["a"], status="held")
    assert [entry.status for entry in journal.state.entries.values()] == ["superseded", "held"]
    journal.add("state", entry="b", status="queued")
    assert journal.state.entries["b"].status == "queued"


def test_a_manual_pause_stays_whatever_the_queue_finds(journal):
    journal.enq("a")
    journal.add("pause", reason="asked", detail="release day", tip="")
    journal.add("pause", entry="a", reason="base_red", detail="d", tip="0")
    journal.add("config", **asdict(QueueConfig("make")))
    assert journal.state.pause.is_manual
    assert "unpause" in journal.state.pause.describe()
    journal.add("resume", reason="why")
    assert journal.state.pause is None


def test_a_configuration_is_read_back_and_so_is_an_older_one():
    config = QueueConfig("make", "pip", False, 5.0, ("a",), "squash", "ignored", ("*.o",), 2, True)
    assert from_data(QueueConfig, asdict(config)) == config
    old = {"gate": "make", "setup": None, "no_gate": False, "timeout": 1.0, "lock_files": ["x"]}
    assert from_data(QueueConfig, old) == QueueConfig("make", timeout=1.0, lock_files=("x",))
    launched = config.with_gate_of(QueueConfig("make", "pip"))
    assert (launched.strategy, launched.keep, launched.guard, launched.timeout) == ("squash", ("*.o",), True, 5.0)
    assert config.with_gate_of(QueueConfig("make", timeout=7.0)).timeout == 7.0


def test_the_history_shows_what_was_tested_together_and_foreign_moves_of_the_target(journal):
    config = QueueConfig("make test")
    journal.add("config", **asdict(config))
    for name in "abcd":
        journal.enq(name, node=name)
    key = config.command_key

    def verdict(names, tree):
        journal.add("verdict", entry=names[0], entries=list(names), of="entry", tree=tree, command=f"{key}-env",
                    result="green", reason="", log=f"{tree}.log")

    verdict("ab", "t2")
    journal.land("ab", tree="t", old="0")
    verdict("c", "t3")
    journal.land("c", tree="t3", old="x")
    journal.add("landed", entry="d", commit="cc", old="cc", reason="already in main")
    rows = landings_in(journal.records)
    assert [(row.entry, row.commit, row.together) for row in rows] == [
        ("a", "ca", 2), ("b", "cb", 2), ("", "x", 1), ("c", "cc", 1), ("d", "cc", 1)]
    assert [row.tested.tree if row.tested else "" for row in rows] == ["t2", "t2", "", "t3", ""]
    assert rows[0].describe() == "tree t2 by 'make test', with 1 more"
    assert [row.describe() for row in rows[2:]] == ["moved by someone else", "tree t3 by 'make test'",
                                                  "already in main"]
    assert [row.to_dict()["foreign"] for row in rows] == [False, False, True, False, False]
