"""A home with texts of real projects, for the tests of this folder: long answers and names, a traceback, ends of logs,
a park after a failure, Chinese, emoji, and hostile markup."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from garrison.records import run as run_records
from garrison.records.run import Launch, RunFiles
from garrison.run.agent_activity import WAITING
from timeline_support import BEGIN, Story, TimedHome
from top_support import HomeBuilder

LONG = "refuse_amounts_that_cannot_be_counted_in_cents_1"
"""The longest possible name of a node."""
TITLE = ("Rewrite every caller of Money so that amounts are counted in cents, including the importer, invoices, "
         "the report, the tests of all three and the pages customers read, without changing what any of "
         "the public functions returns until the deprecation that was announced for the next release has passed.")
"""A label of 300 characters."""
CHINESE, EMOJI = "把金额改为以分计算，并更新所有的测试和文档", "🧮 Count 👩‍👩‍👧 families in €"
HOSTILE = "<img src=x onerror=alert(1)> \u202egnp.exe"
TRACEBACK = """Traceback (most recent call last):
  File "/work/tests/test_money.py", line 41, in test_total
    assert total(["0.10", "0.20"]) == Money(30)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/work/src/shop/money.py", line 17, in total
    return Money(sum(map(parse, amounts)))
                 ^^^^^^^^^^^^^^^^^^^^^^^^^
TypeError: unsupported operand type(s) for +: 'int' and 'Decimal'
"""
ANSWERS = ("Half even", "Round half to even everywhere, as the bank does, and adapt the tests of the old rule",
           "Keep the old rule for invoices that were sent before the change. " * 4 + "用新的规则处理其他一切。" * 3)
"""Answers of about 10, 80 and 300 characters."""
LABELS = (TITLE, CHINESE, EMOJI, HOSTILE)
"""Labels of the nodes of every run of this folder's tests."""
NODES: Mapping[str, str] = {
    "plan": "Plan", "money": TITLE, LONG: CHINESE, "audit": EMOJI, "docs": HOSTILE, "ask_rounding": "Which rule?",
    "release": "Release notes", "flaky": "Mend the flaky test", "importer": "Importer", "report": "Monthly report"}
LOG = "collecting …\n" + "tests/test_money.py ....F\n" * 40 + TRACEBACK + "1 failed, 518 passed in 41.20s\n"


def gate(node: str, text: str, *labels: str, **more: Any) -> dict[str, Any]:
    """Return the record of a gate before `node`, with these answers or with any."""
    options = [{"key": str(at), "label": label, "target": "exit", "written": label} for at, label in enumerate(labels)]
    return {"place": f"{node}#1", "node": node, "kind": "human", "text": text, "signal": "", "default": "",
            "deadline": "", "type": "single_select" if labels else "free_text", "options": options, **more}


def build_real_texts(builder: HomeBuilder, run: str = "texts-1") -> None:
    """Make a run at work in which something of each kind waits, and finished runs."""
    guardian = builder.run(run, *NODES)
    shapes = {"ask_rounding": "hexagon"}
    boxes = "; ".join(f'{name} [shape={shapes.get(name, "box")}, command="true", label="{label}"]'
                      for name, label in NODES.items())
    RunFiles(builder.home, run).graph.write_text(
        f'digraph crew {{ flow=dag; goal="{TITLE} {CHINESE}"; start [shape=Mdiamond]; exit [shape=Msquare]; {boxes}; '
        f"start -> plan; plan -> money; plan -> {LONG}; plan -> audit; plan -> docs; plan -> flaky; plan -> importer; "
        f'money -> release; {LONG} -> release; audit -> exit; docs -> exit; flaky -> exit; importer -> report; '
        f'report -> exit; plan -> ask_rounding; ask_rounding -> release [label="{ANSWERS[1]}"]; release -> exit }}',
        encoding="utf-8")
    builder.incarnation("launch", "launch", run)
    builder.incarnation("guardian", "crew", run)
    builder.incarnation("processor", "crew", run)

    def node(name: str, status: str, attempt: int = 1, **more: object) -> None:
        guardian.append("node", {"node": name, "status": status, "attempt": attempt, **more}, builder.now())

    for status in ("active", "impl_complete", "validated"):
        node("plan", status, **({"commit": "25c25555dfab"} if status == "validated" else {}))
    builder.working(guardian, run, "money", life=2)
    builder.died(guardian, f"orchestrator-money@{run}", 1, "killed by signal 9")
    builder.working(guardian, run, LONG)
    node("audit", "active")
    node("audit", "active", 2, reason=f"acceptance: {TRACEBACK.strip().splitlines()[-1]}")
    node("audit", "failed", 2, reason=f"exit 1: 1 failed, 518 passed in 41.20s\n{TRACEBACK}")
    for attempt in (1, 2):
        folder = RunFiles(builder.home, run).attempt("audit", attempt)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "output.log").write_text(LOG, encoding="utf-8")
    builder.working(guardian, run, "docs")
    waiting = RunFiles(builder.home, run).attempt("docs", 1) / WAITING
    waiting.parent.mkdir(parents=True, exist_ok=True)
    waiting.write_text("for an answer", encoding="utf-8")
    guardian.append("signal", {"id": "q1", "type": "NEEDS_INPUT", "node": "docs", "attempt": 1,
                               "from": f"runner-docs@{run}",
                               "question": {"id": "q1", "text": f"{EMOJI}: {CHINESE}？\n{HOSTILE}"}}, builder.now())
    node("flaky", "active")
    node("flaky", "active", 2, reason="the gate was red: test_cart.py::test_total")
    guardian.append("signal", {"id": "s1", "type": "ORCHESTRATOR_PARKED", "node": "flaky", "attempt": 2,
                               "from": f"runner-flaky@{run}", "stuck": {
                                   "why": "died 4 times in 60 s, last: exit 137 (out of memory)", "probe_at": "",
                                   "life": 4}}, builder.now())
    node("importer", "active")
    guardian.append("signal", {"id": "h1", "type": "USER_GUIDANCE", "node": "importer", "attempt": 1, "from": "person",
                               "hold": "importer", "text": f"{CHINESE} – after lunch"}, builder.now())
    guardian.append("gate", gate("ask_rounding", f"Which rule? {TITLE}", *ANSWERS), builder.now())
    builder.cost(run, "money", 12.3456)
    guardian.close()
    _over(builder.home, "done-1", 60)
    _over(builder.home, "failed-1", 12, f"exit 1: {TRACEBACK.strip().splitlines()[-1]}\n{TRACEBACK}")


def _over(home: Path, run: str, nodes: int, failure: str = "") -> None:
    """Write a finished run, done or failed at its last node, in layers of six."""
    told = Story(TimedHome(home, begin=BEGIN - 86400), run)
    names = [f"step_{number:02}" for number in range(nodes)]
    run_records.save(told.files.launch, Launch(run, "nightly", "/src/shop", "main", told.builder.now(), "/trees"))
    edges = "; ".join([*(f"{names[max(0, at - 6)] if at >= 6 else 'start'} -> {name}" for at, name in enumerate(names)),
                       *(f"{name} -> exit" for name in names[-6:])])
    boxes = "; ".join(f'{name} [shape=box, command="true"]' for name in names)
    told.files.graph.write_text(f"digraph crew {{ flow=dag; start [shape=Mdiamond]; exit [shape=Msquare]; {boxes}; "
                                f"{edges} }}")
    told.guardian(0, "run", status="running")
    for minute, name in enumerate(names, 1):
        told.node(minute, name, "active")
        if failure and name == names[-1]:
            told.node(minute, name, "failed", reason=failure)
            continue
        told.node(minute, name, "impl_complete")
        told.node(minute, name, "validated", commit="1" * 40)
    told.guardian(nodes + 1, "run", status="failed" if failure else "done")
    for writer in told.writers.values():
        writer.close()
