"""Sessions: an agent with state on disk, whose flow is two graphs, one per message and one per heartbeat.

    session = Session(SessionState("s1", "agent"), {"llm_call": call}, folder=home / "sessions/s1")
    async with session:
        print((await session.send("Hello")).response)

The session owns the state, the graphs the flow; the engine keeps nothing between two runs. The inputs and results of a
run and the permissions of each trust tier are pure (`state`); `nodes` has the engine's handlers, and only `adapters`
access the outside world. A heartbeat calls a model only if initiative is switched on, within its budget.
"""

from garrison.session.adapters import Adapters
from garrison.session.session import HeartbeatResult, Initiative, Session, TurnResult
from garrison.session.state import MODES, SessionState

__all__ = ["MODES", "Adapters", "HeartbeatResult", "Initiative", "Session", "SessionState", "TurnResult"]
