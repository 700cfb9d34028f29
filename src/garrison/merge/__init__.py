"""Merge queue: test branches as they would look merged, and land them by one compare-and-swap of the target ref.

The route of an entry:

1. `queue.MergeQueue.enqueue` pins the branch's commit and appends an `enq` record, durable before it returns. The
   caller, a runner or the user, does not wait for a test.
2. `processor.MergeProcessor.step` is one small step of the process that owns `processor.lock`. It reads the journal and
   the refs, then does whichever of the following is next.
3. `decision.decide` weighs prior probabilities (`beliefs`) and finished runs (`decision`) and chooses which sets to
   test next, what to land and what to reject. `check_base` has the bare target tested first.
4. `candidates.CandidateBuilder.start_set` stacks a set on the target's tip, using each entry's strategy and no
   checkout: a `state` record says `candidate`. An entry that cannot be merged ends as `conflict`; `conflicts` finds
   such entries while a gate runs.
5. `gate_runs.GateRuns` starts the gate in a worktree (`slots`), detached: `test` is recorded before, `verdict` after.
6. `landing.Lander.land` rehearses the landing in every open checkout of the target (`checkouts`), records `landing`,
   swaps the ref (`target`), moves the checkouts along and records `landed`.
7. `entry.make_outcome` derives the signals to the entry's runner from the records; the processor's process sends them.

Invariants:

* The target ref is the truth; the queue's `journal.jsonl` contains intents and verdicts (`records`), `state` replays
  it, and there is no other memory. After kill -9 at any point, journal and ref together say what to do;
  `processor.recover` and `Lander.finish` do it. Every 1,000 records a snapshot starts a new journal.
* `enq` is durable before the enqueue returns, `verdict` before `landing`, `landing` before the swap.
* Every value the target takes is a commit whose tree passed the gate (or the queue says `no_gate`), put there by one
  compare-and-swap: `update-ref REF NEW OLD` under `queue.lock`, or a push with a lease, after the epoch was compared.
* No checkout the user has open is switched, reset or made dirty.

Supporting modules: `entry` (an entry, its lifecycle and rank), `config`, `commands` (the user's: hold, retry, pause …),
`guard` (prevents others from moving the target), `preflight` (the gate on the bare target before a launch), `history`
(what landed and what was tested for it), `recovery` (repairs, and rebuilds a damaged journal).
"""
