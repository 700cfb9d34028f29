"""The merge queue: branches wait here, are tested merged, and land by one compare-and-swap of the target ref.

The rules of this room:

* The target ref is the truth; `journal.jsonl` of the queue holds intents and verdicts, `state.py` folds it, and nothing
  else is remembered. After kill -9 at any point the fold and the ref together say what is to be done.
* Every 1,000 records the processor puts the journal aside and begins a new one with a snapshot of the fold.
* `enq` is durable before the enqueuer is answered, `verdict` before `landing`, `landing` before the swap.
* Every value the target takes is a commit whose tree passed the gate (or the queue says `no_gate`), put there by one
  compare-and-swap: `update-ref REF NEW OLD` under `queue.lock`, or a push with a lease, after the epoch was compared.
* No checkout the user has open is switched, reset or made dirty. A landing under one is rehearsed before the swap.
* Whoever enqueues waits for no test. One processor at a time works, by `processor.lock` of the repository.
* What a person asks for is one record under `queue.lock` (`asked`); a processor meets it at its next step.
* Pure: `entry`, `config`, `facts`, `state`, `snapshot`, `seen`, `history`; what decides: `batch`, `order`, `sizing`,
  `decide`, and `salvage` about a damaged journal.
* Acting: `queue`, `target`, `strategies`, `publish`, `slot`, `gate`, `preflight`, `guard`, `mending` with `rebuilding`;
  `processor` joins `building` (candidates), `early`, `trying` (gate runs) and `landing`, which write with its `pen`.
"""
