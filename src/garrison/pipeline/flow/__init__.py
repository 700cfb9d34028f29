"""Flow of a run: a pure state machine with two strategies, `walk` and `dag`.

* Everything here is pure: `advance` changes only the state it is given; the same events lead to the same state.
* A driver journals an event, applies it, and runs what `Change.started` holds. It does nothing else to a run.
* The engine executes `start`, `exit`, `conditional`, `parallel` and `parallel.fan_in`; all other nodes are put in
  flight.
* Imports point down: machine; dag; walk; parallel; routing and state; program.
"""

from garrison.pipeline.flow.machine import (
    Aborted,
    Event,
    Finished,
    Restarted,
    Resumed,
    SentBack,
    Suspended,
    TimedOut,
    advance,
    begin,
    declined_at,
    event_from_data,
    extend,
    node_to_return_to,
    retriable_nodes,
    start,
)
from garrison.pipeline.flow.routing import choose, choose_all
from garrison.pipeline.flow.state import DONE, FAILED, ROOT, RUNNING, WAITING, Change, FlowState, Place, Step

__all__ = [
    "DONE", "FAILED", "ROOT", "RUNNING", "WAITING", "Aborted", "Change", "Event", "Finished", "FlowState", "Place",
    "Restarted", "Resumed", "SentBack", "Step", "Suspended", "TimedOut", "advance", "begin", "choose", "choose_all",
    "declined_at", "event_from_data", "extend", "node_to_return_to", "retriable_nodes", "start",
]
