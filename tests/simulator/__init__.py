"""Simulator: whole runs in memory, with the real decisions, disturbed by every fault and checked at every write.

`world` is machine and disk. `launcher`, `guardian`, `runner`, `orchestrator` and `merge_processor` are the processes
(on `supervision`): each lets the real policy decide, and carries out its actions. `commands` is what people and timers
call. `chaos` disturbs them; `check`, `restarts` and `liveness` hold the rules; `simulation` plays one seed. `mutations`
are the bugs that it must find.
"""
