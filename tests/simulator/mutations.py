"""Planted protocol bugs: small changes of the source that a simulator worth its name must find.

Each replaces text that occurs exactly once (`test_every_mutation_applies` holds this). `tests.simulator_mutations`
applies them one by one in a scratch copy and runs the simulator there. Those in `SHELLS` stand in the simulator's own
processes, which carry out in memory what the real ones do on disk: they show that a wrong order of effects is found,
and nothing about the real order, which the failpoint tests hold.
"""

# ruff: noqa: E501  # texts of the source stand here as they stand there

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """One replacement in a file below the root of the repository."""

    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutation:
    """One planted bug, in words and as edits."""

    name: str
    what: str
    edits: tuple[Edit, ...]


def _bug(name: str, what: str, path: str, old: str, new: str, *more: tuple[str, str, str]) -> Mutation:
    """Return a bug of one edit or several; paths are below src/garrison, or begin with `tests/`."""
    return Mutation(name, what, tuple(
        Edit(place if place.startswith("tests/") else f"src/garrison/{place}", before, after)
        for place, before, after in ((path, old, new), *more)))


VERDICT, LEASE, DECISIONS = "supervise/verdict.py", "supervise/incarnation.py", "supervise/decisions.py"
RESTART, CIRCUIT, HANGS = "supervise/restart.py", "supervise/circuit.py", "supervise/hang_detector.py"
SIGNALS, STATE, STORE = "records/signals.py", "processes/run_state.py", "records/store.py"
SIM = "tests/simulator/"
GUARDIAN, RUNNER, LAUNCHER = ("processes/guardian/policy.py", "processes/runner/policy.py",
                              "processes/launcher/policy.py")
VIEW, FLOW, LANDING = ("processes/guardian/view.py", "processes/guardian/flow_policy.py",
                       "processes/guardian/landing_policy.py")

LIVES = (
    _bug("pid_alone", "a process is known by its number alone, without its start time", VERDICT,
         "    if observation.pid_ticks != identity.start_ticks:\n", "    if False:\n"),
    _bug("gone_is_alive", "a process that is gone counts as alive", VERDICT,
         '        return Verdict("dead", f"process {identity.pid} is gone")\n',
         '        return Verdict("alive", f"process {identity.pid} is gone")\n'),
    _bug("deadline_never_passes", "a start that is held up is waited for without end", VERDICT,
         "    if observation.deadline_passed:\n", "    if False:\n"),
    _bug("spawner_vouches", "a process killed while it starts counts as starting as long as its spawner lives", VERDICT,
         "or (is_spawner_alive and not observation.spawn_due):", "or is_spawner_alive:"),
    _bug("clock_set_back_unseen", "a start is waited for until the wall clock is where it was", VERDICT,
         "    return not 0 <= now - leased_at <= SPAWN_SECONDS\n", "    return now - leased_at > SPAWN_SECONDS\n"),
    _bug("watched_time_ignored", "a start's deadline is read from the wall clock alone", VERDICT,
         "    return now > deadline or watched > deadline - leased_at\n", "    return now > deadline\n"),
    _bug("lapsed_is_starting", "a start that has no process is waited for", VERDICT,
         '    return Verdict("lapsed", "it ended before it was active: it has no process")\n',
         '    return Verdict("starting", "it ended before it was active: it has no process")\n'),
    _bug("starting_not_looked_at_again", "the lease sets no time to look again", DECISIONS,
         '        return RestartDecision("none", verdict.why, now + START_RECHECK)\n',
         '        return RestartDecision("none", verdict.why)\n'),
    _bug("lease_over_a_living_one", "a lease is granted while an incarnation is alive", LEASE,
         "    if old is not None and verdict is not None:\n        if verdict.living:\n",
         "    if False:\n        if verdict.living:\n"),
    _bug("incarnation_used_again", "a successor gets the number of its predecessor", LEASE,
         "    incarnation = max(old.incarnation if old else 0, request.journal_incarnation) + 1\n",
         "    incarnation = max(old.incarnation if old else 1, request.journal_incarnation)\n"),
    _bug("journaled_incarnation_ignored", "a lost record starts its name's incarnations again from one", LEASE,
         "    incarnation = max(old.incarnation if old else 0, request.journal_incarnation) + 1\n",
         "    incarnation = (old.incarnation if old else 0) + 1\n"),
    _bug("hook_begun_anew", "a successor forgets phase, notes and history", LEASE,
         "    return continue_hook(old, fresh_id, incarnation, now)\n",
         "    return Hook(fresh_id, key.role, key.name, key.run, now, now, incarnation=incarnation)\n"),
    _bug("late_spawner_links", "a spawner that was delayed takes the hook back from a later incarnation", LEASE,
         "    if old.incarnation > incarnation:\n", "    if False:\n",
         (LEASE, "    if old.incarnation == incarnation:\n        return old\n", "")),
    _bug("fenced_may_write", "a process that was declared dead goes on writing its record", LEASE,
         '    if identity.status in ("crashed", "parked"):\n        raise Fenced(f"{key.full} was declared',
         '    if False:\n        raise Fenced(f"{key.full} was declared',
         (STORE, "    if existing.incarnation > incarnation:\n", "    if False:\n")),
    _bug("later_incarnation_overwritten", "a write is not compared with the incarnation on record", STORE,
         "    if existing.incarnation > incarnation:\n", "    if False:\n"),
)

RESTARTS = (
    _bug("death_not_journaled", "a successor starts before the death is recorded", DECISIONS,
         '    if _journaled_death(identity, deaths) is None:\n        return RestartDecision("record", identity.reason)\n'
         "    outcome", "    outcome"),
    _bug("restart_without_backoff", "a process that dies again and again is restarted at once", DECISIONS,
         '    return RestartDecision("start" if outcome.at <= now else "wait", outcome.why, outcome.at)\n',
         '    return RestartDecision("start", outcome.why, outcome.at)\n'),
    _bug("backoff_without_wake_up", "nothing wakes the supervisor when the backoff is over", DECISIONS,
         '    return RestartDecision("start" if outcome.at <= now else "wait", outcome.why, outcome.at)\n',
         '    return RestartDecision("start" if outcome.at <= now else "wait", outcome.why)\n'),
    _bug("backoff_too_long", "the backoff grows without its cap", RESTART,
         "    return float(min(policy.cap, base * 2.0", "    return float(min(1e6, 1000 * base * 2.0"),
    _bug("never_parked", "a process that keeps dying is restarted without end", RESTART,
         "    if _weigh(restart.weight for restart in recent) > policy.intensity:\n", "    if False:\n"),
    _bug("parked_early", "a process is parked after two deaths", RESTART,
         "    if _weigh(restart.weight for restart in recent) > policy.intensity:\n",
         "    if _weigh(restart.weight for restart in recent) > 1:\n"),
    _bug("no_probe", "what was parked is never tried again", RESTART,
         "        return circuit.since + self.cool_down(circuit.parks) if boot_id == circuit.boot_id else 0.0\n",
         "        return 1e12\n"),
    _bug("no_room_retried_at_once", "what the machine had no room for is tried again without a pause", RESTART,
         "        at = last.monotonic + pause if last.boot_id == boot_id else now\n", "        at = now\n"),
    _bug("no_room_counted", "what the machine had no room for counts as a crash", "supervise/death_classes.py",
         '    SHORTAGE: Ruling(False, "pause"),', '    SHORTAGE: Ruling(True, "backoff"),'),
    _bug("probed_at_once", "what was parked is tried again without its cool-down", RESTART,
         "        return circuit.since + self.cool_down(circuit.parks) if boot_id == circuit.boot_id else 0.0\n",
         "        return 0.0\n"),
    _bug("up_starts_nothing", "`garrison up` leaves a run that is under way without a launcher", "processes/resume_all.py",
         '    if state.status == "stopped":\n', "    if True:\n"),
    _bug("probe_does_not_wake", "nothing wakes the supervisor when a probe is due", DECISIONS,
         'if at <= now else RestartDecision("parked", circuit.why, at)', 'if at <= now else RestartDecision("parked", '
         "circuit.why)"),
    _bug("probe_closes_nothing", "a probe that stays healthy leaves its circuit open", CIRCUIT,
         "            return Circuit(forgiven=max(circuit.forgiven, event.incarnation - 1))\n",
         "            return circuit\n"),
    _bug("unparked_stays_parked", "a person's unpark changes nothing", CIRCUIT,
         "    return Circuit(forgiven=max(circuit.forgiven, circuit.life, circuit.probe, incarnation))\n",
         "    return circuit\n"),
    _bug("death_counted_twice", "the death of an earlier attempt's runner is recorded in the next one, too", GUARDIAN,
         "    return state.buried.get(identity.key.full, 0) >= identity.incarnation\n", "    return False\n"),
    _bug("hang_unseen", "a process that does nothing is never replaced", HANGS,
         "    for rule in (_stopped, _silent, _spinning, _agent_stopped):\n", "    for rule in ():\n"),
    _bug("impatient", "a process is called hung after a third of its time", HANGS,
         "    for rule in (_stopped, _silent, _spinning, _agent_stopped):\n        if (why := rule(evidence, timeout))",
         "    for rule in (_stopped, _silent, _spinning, _agent_stopped):\n"
         "        if (why := rule(evidence, timeout / 3))"),
    _bug("own_pause_counts", "time in which the watcher itself was stopped counts as the other's silence", HANGS,
         "        self.step = min(self.cap, passed)\n", "        self.step = passed\n"),
    _bug("blocked_is_silent", "a process that waits for the disk is called hung", HANGS,
         '    if e.blocked or e.state in ("D", "R", "T", "") or', '    if e.state in ("R", "T", "") or'),
    _bug("graceful_guardian_end", "a guardian that ended without its run gets no successor", LAUNCHER,
         '    return replace(guardian, identity=replace(identity, status="crashed"))\n', "    return guardian\n"),
    _bug("orphan_not_restarted", "a runner that ended as an orphan gets no successor", VIEW,
         "    return identity.reason not in FINISHED\n\n\ndef is_suspended", "    return False\n\n\ndef is_suspended"),
    _bug("resumed_stays_stopped", "a runner that was stopped gets no successor once its run is resumed", VIEW,
         "        return state.lifted.get(identity.key.full, 0) >= identity.incarnation\n", "        return False\n"),
    _bug("processor_not_watched", "nobody starts the merge processor", GUARDIAN,
         '    if view.processor.hung or (has_work and "processor" not in state.held):\n', "    if view.processor.hung:\n"),
    _bug("cleanup_without_runner", "a landed node whose runner died is not cleaned up", VIEW,
         '    if status != "validated" or identity is None:\n        return False\n', "    if True:\n        return False\n"),
    _bug("chance_used_before_the_landing", "a landed node whose runner was parked twice before is not cleaned up", VIEW,
         "1 <= state.circuit(identity.key.full).parks <= max(1, state.nodes[node].parks)",
         "state.circuit(identity.key.full).parks == 1"),
    _bug("graceful_end_untold", "no record tells the graceful end of an earlier attempt's runner", GUARDIAN,
         '"; ".join(filter(None, (f"attempt {node.attempt}", ended)))', 'f"attempt {node.attempt}"'),
    _bug("graceful_end_of_a_cleaner_untold", "no record tells the graceful end of a landed node's runner", GUARDIAN,
         'why=f"{ended or decision.why}; its branch', 'why=f"{decision.why}; its branch'),
    _bug("predecessor_unburied", "the next attempt's runner starts before the last one's death is recorded", GUARDIAN,
         '    if decision.kind == "record":\n        return _is_death_recorded(state, identity)\n',
         '    if decision.kind == "record":\n        return True\n'),
    _bug("graceful_end_of_an_agent_untold", "the graceful end of a cancelled attempt's orchestrator is not recorded",
         RUNNER, '    return f"attempt {view.task.attempt}{ended}"\n', '    return f"attempt {view.task.attempt}"\n'),
    _bug("orphan_never", "an orphaned runner never gives up", RUNNER,
         "    return view.orphaned_for is not None and view.orphaned_for > view.orphan_grace\n", "    return False\n"),
    _bug("no_limit_of_time", "the time limit of a run is ignored", FLOW,
         "    is_over = from_iso(state.began) + plan.max_seconds <= view.wall\n", "    is_over = False\n"),
    _bug("gate_approves_itself", "a gate is approved without an answer", FLOW,
         "gate.kind == gates.HUMAN and view.auto_approve", "gate.kind == gates.HUMAN"),
    _bug("stop_counts_as_death", "an agent that stopped as its runner asked it to counts as one that crashed", RUNNER,
         '            and facts.stop_requested >= identity.incarnation)\n',
         '            and facts.stop_requested > identity.incarnation)\n'),
    _bug("orphan_at_once", "a runner gives up as soon as it finds nobody above it", RUNNER,
         "    return view.orphaned_for is not None and view.orphaned_for > view.orphan_grace\n",
         "    return view.orphaned_for is not None\n"),
    _bug("lost_request_to_resume", "a request to resume dies with the launcher that carried it", "processes/resume_all.py",
         "    if died_at_work and identity is not None and (request :=",
         "    if False and identity is not None and (request :="),
)

MESSAGES = (
    _bug("guardian_applies_twice", "a signal that arrives again is applied again", GUARDIAN,
         "        elif signal.id in state.applied:\n", "        elif False:\n"),
    _bug("runner_applies_twice", "a runner applies a signal that arrives again", RUNNER,
         "        elif signal.id in facts.applied:\n", "        elif False:\n",
         (f"{SIM}runner.py", " and signal.id not in self.facts.applied:", ":")),
    _bug("old_attempt_believed", "a report about an earlier attempt is taken for the current one", SIGNALS,
         "        if signal.attempt != current:\n", "        if False:\n"),
    _bug("other_run_believed", "a signal of another run is applied", SIGNALS,
         "    if signal.run_id != run:\n", "    if False:\n"),
    _bug("old_order_obeyed", "an order to kill an incarnation that is over hits its successor", SIGNALS,
         'TO_INCARNATION = frozenset({"KILL_ORCHESTRATOR", "INPUT_RESPONSE"})\n',
         'TO_INCARNATION = frozenset({"INPUT_RESPONSE"})\n'),
    _bug("dead_sender_dropped", "a report whose sender has ended is dropped", GUARDIAN,
         "        elif why := find_objection(signal, view.run, state.attempts, incarnations):\n",
         "        elif why := find_objection(signal, view.run, state.attempts, incarnations) or (\n"
         '                signal.sender.role == "runner" and not view.runner(signal.node_id or "").living\n'
         '                and "its sender is dead" or ""):\n'),
    _bug("question_kept", "an agent's question does not reach the guardian", RUNNER,
         '            return replace(event, forward="up")\n', "            return event\n"),
    _bug("answer_kept", "a person's answer does not reach the agent", RUNNER,
         '            return replace(event, forward="down")\n', "            return event\n"),
    _bug("unpark_forgotten", "a runner forgets that its agent was unparked", RUNNER,
         "        if event.unpark:\n            self.circuit", "        if False:\n            self.circuit"),
    _bug("cancelled_after_enqueue", "a node whose work is in the queue is cancelled all the same", RUNNER,
         "        case CancelNode() if not _is_in_merge_queue(facts, view):\n", "        case CancelNode():\n"),
    _bug("held_works_on", "a node that a person parked goes on", GUARDIAN,
         "            actions.append(Action(ActionKind.TERMINATE, name, PARKED_BY_PERSON))\n", "            pass\n"),
    _bug("compaction_forgets_signals", "a compacted journal no longer knows which signals were applied", STATE,
         '"applied": sorted(state.applied),', '"applied": [],'),
    _bug("compaction_forgets_deaths", "a compacted journal forgets the deaths", STATE,
         '            "deaths": {full: [asdict(death) for death in deaths] for full, deaths in state.deaths.items()},\n',
         '            "deaths": {},\n'),
    _bug("compaction_forgets_incarnations", "a compacted journal forgets the incarnations", STATE,
         '"incarnations": state.incarnations,', '"incarnations": {},'),
    _bug("compaction_forgets_landing", "a compacted journal forgets the run's landing", STATE,
         '            "landing": _without_empty(asdict(state.landing)),\n', '            "landing": {},\n'),
)

ATTEMPTS = (
    _bug("rework_counter_forgotten", "a node is reworked without end", GUARDIAN,
         "    if kind in REWORKABLE and node.rework < max_rework + (kind == MOVED):\n", "    if kind in REWORKABLE:\n"),
    _bug("never_reworked", "a failure that a new attempt may fix ends the node", GUARDIAN,
         'REWORKABLE = frozenset({"acceptance", "gate", "conflict", "no_change", LOST, MOVED, UNFINISHED_WORK, GUARD, '
         'HOOK})\n',
         "REWORKABLE = frozenset()\n"),
    _bug("facts_of_every_attempt", "a runner takes the facts of an earlier attempt for its own", RUNNER,
         "        if event.attempt != attempt:\n            return\n        match", "        match"),
    _bug("phase_of_an_earlier_attempt", "a new attempt continues in the phase of the last one", RUNNER,
         "    return view.task.attempt == 1 or facts.has_begun\n", "    return True\n"),
    _bug("agent_of_an_earlier_attempt", "an agent of an earlier attempt counts as this one's", RUNNER,
         "    return view.orchestrator.precedes(view.task.attempt)\n", "    return False\n"),
    _bug("failure_is_success", "an agent's failure counts as success", RUNNER,
         '    if view.result is not None and view.result.status != "success":\n', "    if False:\n"),
    _bug("acceptance_skipped", "work is not accepted before it goes to the queue", RUNNER,
         "    if view.task.acceptance and not facts.acceptance:\n", "    if False:\n"),
    _bug("acceptance_ignored", "work that was not accepted goes to the queue", RUNNER,
         '    if facts.acceptance not in ("", "ok"):\n', "    if False:\n"),
    _bug("nothing_is_a_success", "an attempt that changed nothing succeeds", RUNNER,
         "    if facts.change == UNCHANGED and not view.task.allow_empty:\n", "    if False:\n"),
    _bug("cancelled_and_reworked", "a cancelled node gets a new attempt", RUNNER,
         'CANCELLED = "cancelled"\n', 'CANCELLED = "acceptance"\n'),
    _bug("too_many_agents", "more agents work than were allowed", GUARDIAN,
         "            for name in ready[: max(0, max_agents - busy)]]\n", "            for name in ready]\n"),
    _bug("parked_occupies", "a parked node occupies an agent", GUARDIAN,
         '    busy = sum(1 for name, node in state.nodes.items() if node.status == "active" and not is_resting('
         "state, view, name))\n",
         '    busy = sum(1 for name, node in state.nodes.items() if node.status == "active")\n'),
    _bug("flow_advanced_twice", "an attempt advances every step at which its node is", FLOW,
         "    return node.step == step_id(place) or (not node.step and place.visit == 1 and place.attempt == 1)\n",
         "    return True\n"),
    _bug("failures_succeed", "the flow takes every failed task for a success", FLOW,
         'claim, succeeded=node.status == "validated",', "claim, succeeded=True,"),
    _bug("next_before_cleanup", "a new attempt begins beside the runner of the last one", FLOW,
         "    return view.runner(place.node).living or needs_runner(state, view, place.node)\n", "    return False\n"),
    _bug("hook_not_reopened", "a flow that returns to a landed node finds its hook merged", "records/hook.py",
         '    if hook.phase != "merged":\n        return hook\n', "    return hook\n"),
    _bug("ended_with_a_node_at_work", "a run ends while a node is at work", GUARDIAN,
         "    if any(needs_runner(state, view, name) and not is_suspended(state, view, name) and name not in resting\n"
         "           for name in state.nodes):\n        return []\n", ""),
    _bug("stopped_while_alive", "a run is called stopped while its processes live", GUARDIAN,
         "    if actions := _stop_children(state, view):\n        return Decision(actions)\n", ""),
    _bug("strays_left", "orchestrators without a runner outlive their run", GUARDIAN,
         "        if stray.verdict is not None and (stray.verdict.living or stray.verdict.needs_replacement)]\n",
         "        if False]\n"),
    _bug("stop_waits_for_ever", "a child that ignores the order to stop is waited for", GUARDIAN,
         "    if living and view.overdue:\n", "    if False:\n"),
    _bug("runner_stop_waits_for_ever", "a runner waits for an agent that ignores the order to stop", RUNNER,
         "        if view.overdue:\n", "        if False:\n"),
)

QUEUE = (
    _bug("untested_tree_lands", "a set that no gate passed lands", "merge/decision.py",
         "    passed = [run.entries for run in runs if run.green and run.lands and run.entries]\n",
         "    passed = [run.entries for run in runs if run.lands and run.entries]\n",
         ("merge/processor.py", "        return (tree, key) in state.green\n", "        return True\n")),
    _bug("first_lands_untested", "the first entry lands before any gate has run", "merge/decision.py",
         "    passed = [run.entries for run in runs if run.green and run.lands and run.entries]\n",
         "    passed = [(each.id,) for each in waiting[:1]]\n",
         ("merge/processor.py", "        return (tree, key) in state.green\n", "        return True\n")),
    _bug("base_not_tested", "a red target is blamed on the entries", "merge/base_check.py",
         '        return "base_red" if base.result == "red" else "gate_broken"\n    is_answered', "        return "
         '"passes"\n    is_answered',
         ("merge/base_check.py", '            return "test"\n', '            return "passes"\n'),
         ("merge/base_check.py", '        return "passes"\n    return "test"\n', '        return "passes"\n    '
          'return "passes"\n')),
    _bug("pause_never_tried_again", "a queue that paused because signals ended its gate waits for a person",
         "merge/processor.py", "            if has_moved or state.pause.is_retry_due(self.clock.time()):\n",
         "            if has_moved:\n"),
    _bug("red_once_is_rejected_without_repeat", "an entry is rejected though its set alone was red", "merge/decision.py",
         "            if len(group) == 1 and (is_confirmed or any(run.convicts for run in reds)):\n",
         "            if len(group) == 1:\n"),
    _bug("queue_stalls", "entries behind the first are not looked at", "merge/state.py",
         '        queued = [entry for entry in self.ranked() if entry.status == "queued"]\n',
         '        queued = [entry for entry in self.ranked() if entry.status == "queued" and entry.seq < 40]\n'),
    _bug("landed_while_tested", "a node counts as landed while its entry is tested", GUARDIAN,
         '        elif merge.status == "landed":\n', '        elif merge.status in ("landed", "testing"):\n'),
    _bug("verdict_of_an_earlier_attempt", "a verdict on an earlier attempt is taken for the current one", GUARDIAN,
         "        if node is None or node.status not in UNFINISHED or merge.attempt != node.attempt:\n",
         "        if node is None or node.status not in UNFINISHED:\n"),
    _bug("merge_journal_unread", "the guardian does not read what landed", GUARDIAN,
         "    for name, merge in view.merges.items():\n", "    for name, merge in ():\n"),
    _bug("red_gate_unread", "a runner does not read that its work was rejected", RUNNER,
         '    if merge.status in ("conflict", "rejected", "cancelled", "superseded"):\n',
         '    if merge.status in ("conflict", "cancelled", "superseded"):\n'),
    _bug("landing_unread", "a runner does not read that its work has landed", RUNNER,
         '    if merge.status == "landed":\n        return Decision([Action(ActionKind.MOVE_HOOK, "merged")]',
         '    if merge.status == "nothing":\n        return Decision([Action(ActionKind.MOVE_HOOK, "merged")]'),
    _bug("merged_while_tested", "a runner cleans up while its work is tested", RUNNER,
         '    if merge.status == "landed":\n        return Decision([Action(ActionKind.MOVE_HOOK, "merged")]',
         '    if merge.status in ("landed", "testing"):\n        return Decision([Action(ActionKind.MOVE_HOOK, "merged")]'),
    _bug("lost_landing", "nobody records again a landing whose record a power cut took", GUARDIAN,
         '    return (node.status == "validated" and merge is not None and merge.attempt == node.attempt\n'
         "            and merge.status not in entry.FINAL)\n", "    return False\n"),
    _bug("failed_and_landed", "a node whose branch is in the queue fails with its runner", GUARDIAN,
         "    is_enqueued = node is not None and merge is not None and merge.attempt == node.attempt\n",
         "    is_enqueued = False\n"),
    _bug("done_before_it_landed", "a run that lands as a whole is done before it has landed", GUARDIAN,
         "    return landing_policy.request(state, view.run, view.landing)\n", '    return [_end_run("done")]\n'),
    _bug("landing_not_journaled", "a run is enqueued before its request is recorded", LANDING,
         "    return [_change(LandingChanged(REQUESTED, landing.attempt + 1, oid=view.tip, base=view.base))]\n",
         "    return [Action(ActionKind.ENQUEUE, INTEGRATION)]\n"),
    _bug("verdict_on_an_earlier_request", "a verdict on an earlier request is taken for the current one", LANDING,
         "    return view.merge if view.merge is not None and view.merge.attempt == state.landing.attempt else None\n",
         "    return view.merge\n"),
    _bug("landing_requested_without_end", "a run that is refused is sent back without end", LANDING,
         "    if landing.refusals >= max_rework:\n", "    if False:\n"),
)

SHELLS = (
    _bug("acknowledged_before_applied", "a guardian takes a signal out of its inbox before it records the effect",
         f"{SIM}guardian.py",
         "        signal, event = applied.posted.signal, applied.event\n        if signal is not None and isinstance(event, "
         "GuardianSignal):\n",
         "        signal, event = applied.posted.signal, applied.event\n        self.acknowledge(action)\n        yield None\n"
         "        if signal is not None and isinstance(event, GuardianSignal):\n"),
    _bug("runner_acknowledges_first", "a runner takes a signal out of its inbox before it records the effect",
         f"{SIM}runner.py",
         "        signal, event = applied.posted.signal, applied.event\n",
         "        signal, event = applied.posted.signal, applied.event\n        self.acknowledge(action)\n"
         "        yield None\n"),
    _bug("death_recorded_before_reported", "a runner records a death before it reports it", f"{SIM}supervision.py",
         "        yield from self.report_death(death)\n        yield from self.record_synced(death)\n",
         "        yield from self.record_synced(death)\n        yield from self.report_death(death)\n"),
    _bug("not_swept", "a successor starts beside what its predecessor has left", f"{SIM}supervision.py",
         "                   if proc is not me and not proc.doomed and not proc.revenant]:\n",
         "                   if False]:\n"),
    _bug("fence_skipped", "a process is killed without being fenced first", f"{SIM}supervision.py",
         '        fenced = mark_ended(old, "crashed", world.now, why)\n',
         '        fenced = replace(old, metadata={**old.metadata, "reason": why})\n'),
    _bug("lease_not_checked", "a child does not ask whether it is the incarnation on record", f"{SIM}supervision.py",
         '        if found is None or found.incarnation != self.me.incarnation or found.status != "starting":\n',
         "        if found is None:\n"),
    _bug("life_lock_not_taken", "a child registers without its life lock", f"{SIM}supervision.py",
         "        while key in world.life_locks:\n", "        while False:\n"),
    _bug("start_not_synced", "an attempt starts before its record is on the disk", f"{SIM}supervision.py",
         "        yield None\n        self.journal.synced = len(self.journal.entries)\n        self.apply(entry)\n",
         "        yield None\n        self.apply(entry)\n"),
    _bug("wake_up_dropped", "no planned wake-up is kept", f"{SIM}supervision.py",
         "        wake_at = self.decision.wake_at\n", "        wake_at = None\n"),
    _bug("landed_without_the_swap", "a landing is recorded without the target having moved", f"{SIM}merge_processor.py",
         "        world.queue_lock = None\n        yield None\n        if swapped:\n",
         "        world.queue_lock = None\n        yield None\n        if True:\n"),
    _bug("landed_before_the_swap", "a landing is recorded before the target moves", f"{SIM}merge_processor.py",
         "        entries = [world.queue.entry(name) for name in landing.entries]\n",
         "        self._record(landing)\n        yield from self.effects.carry_out()\n"
         "        entries = [world.queue.entry(name) for name in landing.entries]\n"),
    _bug("swap_without_compare", "the target is moved whatever it is", f"{SIM}world.py",
         "        if self.history[-1] != old:\n            return False\n", ""),
    _bug("epoch_unchecked", "a processor that was taken over goes on writing", f"{SIM}world.py",
         "        if epoch is not None and epoch != self.queue.epoch:\n", "        if False:\n"),
    _bug("lock_not_compared", "a process that has lost its life lock goes on", f"{SIM}supervision.py",
         "                if self.world.life_locks.get(self.key) is not self.me:\n", "                if False:\n"),
    _bug("rescue_skipped", "the work of a failed node is removed without being saved", f"{SIM}runner.py",
         "            world.save_work(key)\n            world.branches[key] = []\n", "            world.branches[key] = []\n",
         (f"{SIM}runner.py", "        self.world.save_work(key)\n", "")),
    _bug("worktree_left", "a landed node's worktree is left behind", f"{SIM}runner.py",
         "        key = (self.run.id, self.node)\n        self.world.worktrees.discard(key)\n        yield None\n"
         "        units =", "        key = (self.run.id, self.node)\n        yield None\n        units ="),
    _bug("job_left_behind", "a fenced runner leaves its job running", f"{SIM}runner.py",
         '            self.world.kill(self.job, "abandoned")\n', "            pass\n"),
    _bug("result_without_fence", "a result is written without asking whether the writer is fenced", f"{SIM}world.py",
         "        store.check_incarnation(self.identities.get(proc.key), proc.key, proc.incarnation)\n"
         "        incarnations.require_unfenced(self.identities.get(proc.key), proc.key)\n", ""),
    _bug("fenced_gate_left", "a processor that was taken over leaves the gate run that it has just begun", f"{SIM}merge_processor.py",
         '            cast("Run", self._runs[job]).kill()\n', "            pass\n"),
    _bug("gates_not_adopted", "a processor does not end gate runs that no record names", f"{SIM}merge_processor.py",
         "        self.worker.gates.adopt(world.queue)\n", ""),
)

MUTATIONS: tuple[Mutation, ...] = (*LIVES, *RESTARTS, *MESSAGES, *ATTEMPTS, *QUEUE, *SHELLS)
