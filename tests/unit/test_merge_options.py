from __future__ import annotations

import pytest
from test_merge_state import Journal

from garrison.errors import NotFound, Refused, UsageError
from garrison.merge.commands import explain_no_retry
from garrison.merge.config import QueueConfig
from garrison.merge.entry import NO_OPTIONS, TRANSITIONS, EntryOptions, MergeEntry, ResolvedOptions
from garrison.merge.history import landings_in
from garrison.merge.queue import resolve_options
from garrison.records.record import from_data
from garrison.values import asdict, replace


class LandingJournal(Journal):
    def land(self, names, *, tree, old):
        names = list(names)
        for name in names:
            self.add("state", entry=name, status="candidate", base=old, tree=tree, commit=f"c{name}")
        commits = [f"c{name}" for name in names]
        self.add("landing", entry=names[0], entries=names, commits=commits, old=old, new=commits[-1])
        for name, commit in zip(names, commits, strict=True):
            self.add("landed", entry=name, commit=commit, old=old)


def test_an_entry_inherits_the_options_of_its_predecessor_that_did_not_land():
    journal = LandingJournal()
    journal.enq("dep", node="dep")
    journal.enq("a", priority=4, depends_on=["dep"], strategy="squash")
    assert resolve_options(journal.state, NO_OPTIONS, "r", "n") == ResolvedOptions(4, ("dep",), "squash")
    assert resolve_options(journal.state, EntryOptions(0, (), "rebase"), "r", "n") == ResolvedOptions(0, (), "rebase")
    assert resolve_options(journal.state, NO_OPTIONS, "r", "other", "ff-only") == ResolvedOptions(strategy="ff-only")
    journal.add("landed", entry="a", commit="c", old="0")
    assert resolve_options(journal.state, NO_OPTIONS, "r", "n") == ResolvedOptions()


def test_dependencies_are_ids_or_nodes_and_never_a_cycle():
    journal = LandingJournal()
    journal.enq("a", node="a")
    journal.enq("b", node="b", depends_on=["a"])
    assert resolve_options(journal.state, EntryOptions(depends_on=("b", "a", "b")), "r", "c").depends_on == ("b", "a")
    with pytest.raises(NotFound, match="no node unknown"):
        resolve_options(journal.state, EntryOptions(depends_on=("unknown",)), "r", "c")
    with pytest.raises(Refused, match="would wait for itself"):
        resolve_options(journal.state, EntryOptions(depends_on=("b",)), "r", "a")
    with pytest.raises(Refused, match="would wait for itself"):
        resolve_options(journal.state, EntryOptions(depends_on=("a",)), "r", "a")


def test_a_dependency_is_met_by_any_later_landing_of_its_node():
    journal = LandingJournal()
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


def test_an_entry_that_supersedes_a_held_one_is_held():
    journal = LandingJournal()
    journal.enq("a")
    journal.add("state", entry="a", status="held", reason="wait")
    journal.enq("b", supersedes=["a"], status="held")
    assert [entry.status for entry in journal.state.entries.values()] == ["superseded", "held"]
    journal.add("state", entry="b", status="queued")
    assert journal.state.entries["b"].status == "queued"


def test_a_manual_pause_stays_whatever_the_queue_finds():
    journal = LandingJournal()
    journal.enq("a")
    journal.add("pause", reason="asked", detail="release day", tip="")
    journal.add("pause", entry="a", reason="base_red", detail="d", tip="0")
    journal.add("config", **asdict(QueueConfig("make")))
    assert journal.state.pause.is_manual
    assert "unpause" in journal.state.pause.describe()
    journal.add("resume", reason="why")
    assert journal.state.pause is None


def test_a_configuration_is_read_back_and_an_older_one_too():
    config = QueueConfig("make", "pip", False, 5.0, ("a",), "squash", "ignored", ("*.o",), 2, True)
    assert from_data(QueueConfig, asdict(config)) == config
    old = {"gate": "make", "setup": None, "no_gate": False, "timeout": 1.0, "lock_files": ["x"]}
    assert from_data(QueueConfig, old) == QueueConfig("make", timeout=1.0, lock_files=("x",))
    launched = config.with_gate_of(QueueConfig("make", "pip"))
    assert (launched.strategy, launched.keep, launched.guard, launched.timeout) == ("squash", ("*.o",), True, 5.0)
    assert config.with_gate_of(QueueConfig("make", timeout=7.0)).timeout == 7.0


def test_the_history_shows_what_was_tested_together_and_foreign_moves_of_the_target():
    journal = LandingJournal()
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
