"""The flow of a run: a pure state machine with two strategies, `walk` and `dag`.

The rules of this room:

* Everything here is pure: `advance` changes the state it is given and nothing else; the same events, the same state.
* A driver journals an event, folds it, and starts what `Change.started` holds. That is all it may do with a run.
* `start`, `exit`, `conditional`, `parallel` and `parallel.fan_in` need nobody; everything else is put in flight.
* Modules import downwards: machine, then walk and dag, then fan, then turn, then routing, state and events.
"""

from garrison.pipeline.flow.events import (
    Aborted,
    Event,
    Finished,
    Restarted,
    Resumed,
    Suspended,
    TimedOut,
    event_from_data,
    event_to_data,
)
from garrison.pipeline.flow.machine import advance, begin, opening
from garrison.pipeline.flow.routing import choose, choose_all
from garrison.pipeline.flow.state import DONE, FAILED, ROOT, RUNNING, WAITING, Change, FlowState, Place, Step

__all__ = [
    "DONE", "FAILED", "ROOT", "RUNNING", "WAITING", "Aborted", "Change", "Event", "Finished", "FlowState", "Place",
    "Restarted", "Resumed", "Step", "Suspended", "TimedOut", "advance", "begin", "choose", "choose_all",
    "event_from_data", "event_to_data", "opening",
]
