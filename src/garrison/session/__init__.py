"""Sessions: an agent whose state is kept here and whose flow is a graph, one for a message, one for its own initiative.

    session = Session(SessionState("s1", "agent"), {"llm_call": call}, folder=home / "sessions/s1")
    async with session:
        print((await session.send("Hello")).response)

The rules of this room: the session owns state, the graph owns flow; between two runs the engine holds nothing. What
goes into a run and what comes out (`state`) and what may be done at which trust tier (`trust`) is pure; `nodes` are
the engine's handlers, and the world is reached through adapters alone (`adapters`). A heartbeat asks a model only
where initiative was switched on, under its budget.
"""

from garrison.session.adapters import Adapters
from garrison.session.session import HeartbeatResult, Initiative, Session, TurnResult
from garrison.session.state import MODES, SessionState

__all__ = ["MODES", "Adapters", "HeartbeatResult", "Initiative", "Session", "SessionState", "TurnResult"]
