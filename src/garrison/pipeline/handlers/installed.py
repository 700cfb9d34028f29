"""Handlers of installed packages in a launched run: the program that calls one of them for a node.

    python -P -m garrison.pipeline.handlers.installed TYPE NODE

NODE is the node as JSON: `id`, `attrs` and the graph's `goal`. The program runs like any command of a node: in its
worktree and sandbox. The handler gets a `Call` with the attempt's context; its return value is written as the
attempt's result. A `Waiting` is a failure: a launched run has no process that could wait for it.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
from pathlib import Path

from garrison.errors import GarrisonError
from garrison.pipeline.flow.state import Visit
from garrison.pipeline.graph import Graph, Node
from garrison.pipeline.handlers.call import Call, Scope, Waiting, failed, from_error, to_outcome
from garrison.pipeline.handlers.registry import Registry
from garrison.pipeline.outcome import Outcome
from garrison.values import asdict


async def _call(type_: str, call: Call) -> Outcome:
    try:
        handler = Registry().get(type_)
        if handler is None:
            return failed(f"the package with the handler for {type_} nodes is no longer installed; install it again")
        returned: object = handler(call)
        if inspect.isawaitable(returned):
            returned = await returned
    except GarrisonError as error:
        return failed(str(error))
    except Exception as error:  # a handler that raises has failed, whatever it raises
        return from_error(error)
    if isinstance(returned, Waiting):
        return failed(f"the handler of {type_} waits ({returned.reason}), which a launched run does not support")
    return to_outcome(returned, f"the handler of {type_}")


def main() -> int:
    """Call the handler; exit 0 once its result is written."""
    type_, body = sys.argv[1], json.loads(sys.argv[2])
    node = Node(body["id"], body["attrs"])
    context_file, result_file = (Path(os.environ[f"GARRISON_{name}_FILE"]) for name in ("CONTEXT", "RESULT"))
    context = json.loads(context_file.read_text()) if context_file.exists() else {}
    run = os.environ.get("GARRISON_RUN", "")
    graph = Graph(run, {"goal": body["goal"]}, {node.id: node})
    attempt = int(os.environ.get("GARRISON_ATTEMPT", "1"))
    call = Call(node, Visit(node.id, node.id, attempt=attempt), context,
                Scope(run, graph, Path.cwd(), dict(os.environ), base=Path.cwd()))
    outcome = asyncio.run(_call(type_, call))
    result_file.write_text(json.dumps(asdict(outcome), default=str))
    if outcome.notes or outcome.failure_reason:
        print(outcome.failure_reason or outcome.notes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
