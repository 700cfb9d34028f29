"""Sessions: agents whose state is kept here and whose flow is a graph, one for a message, one for its own initiative.

    session = Session(SessionState("s1", "agent"), {"llm_call": call}, folder=home / "sessions/s1")
    async with session:
        print((await session.send("Hello")).response)

The session owns the state, the graph owns the flow; between two runs the engine keeps nothing. `state` (what goes into
a run and what comes out) and `trust` (what a tier allows) are pure; `nodes` holds the engine's handlers; `adapters`
are the only way to the outside world. A heartbeat calls a model only with initiative switched on, within its budget.
"""

from garrison.session.adapters import Adapters
from garrison.session.session import HeartbeatResult, Initiative, Session, TurnResult
from garrison.session.state import MODES, SessionState

__all__ = ["MODES", "Adapters", "HeartbeatResult", "Initiative", "Session", "SessionState", "TurnResult"]
