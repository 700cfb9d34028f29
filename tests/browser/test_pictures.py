"""The pictures of README and docs, taken of a real run: three widths, light and dark, and a node in detail.

    PICTURES=docs/pictures .venv/bin/python -m pytest -m slow tests/browser/test_pictures.py

Without PICTURES they are taken all the same, into a temporary folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from served_run import WORK, Served, served_place

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
LARGEST = 200_000
"""Bytes of a picture."""
GRAPH = r"""
digraph cents {
  flow=dag; goal="The shop counts money in cents; every step lands through the gate"
  start [shape=Mdiamond]; exit [shape=Msquare]
  plan     [shape=box, label="Plan the change", command="echo plan > plan.md; COMMIT"]
  money    [shape=box, label="Money in cents", command="SAY; HOLD(money); COMMIT"]
  cart     [shape=box, label="Cart totals", command="test $GARRISON_ATTEMPT = 1 || { SAY; HOLD(cart); }; COMMIT",
            acceptance="test $GARRISON_ATTEMPT != 1 || { echo 'test_cart.py::test_total: 10.00 is not 1000'; exit 1; }"]
  tax      [shape=box, label="Tax rules", command="echo 19 > tax.txt; COMMIT"]
  docs     [shape=box, label="Docs", command="echo cents > docs.md; COMMIT"]
  bench    [shape=box, label="Benchmarks", command="echo '2 of 40 checks are slower than before'; exit 1", rework=none]
  ask      [shape=hexagon, label="Round half to even?"]
  rounding [shape=box, label="Rounding rule", command="echo even > rounding.txt; COMMIT"]
  release  [shape=box, label="Release notes", command="echo cents > NEWS.md; COMMIT"]
  start -> plan -> money -> release -> exit
  plan -> cart -> release; plan -> tax -> release; plan -> docs -> exit; plan -> bench -> exit
  plan -> ask; ask -> rounding [label="[Y] Yes, everywhere"]; ask -> exit [label="[N] Keep the old rule"]
  rounding -> exit
}
"""
SAY = ("echo 'reading src/shop/money.py'; echo 'Money(amount: float) -> Money(cents: int)'; "
       "echo '38 of 40 tests pass'; echo 'changing the callers'")
SHOTS = {"web-1440": (1440, 720), "web-900": (900, 1160), "web-360": (360, 760)}


@pytest.fixture
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("web")
    with served_place(root, "cents-1") as made:
        place, text = made.place, GRAPH.replace("COMMIT", "git add -A; git commit -qm $GARRISON_NODE --allow-empty")
        text = text.replace("SAY", SAY)
        for name in ("money", "cart"):
            text = text.replace(f"HOLD({name})", place.hold(name))
        graph = root / "cents.dot"
        graph.write_text(text)
        gate = f"test ! -e tax.txt || {{ {place.hold('tax')}; }}"
        try:
            made.launch(graph, "--max-rework", "1", "--max-agents", "6", gate=gate)
            for name in ("money", "cart", "tax"):
                place.wait_until_held(name)
            place.kill("orchestrator-money", run="cents-1")
            place.wait_until_held("money")
            yield made
        finally:
            place.release("money", "cart", "tax")


def test_pictures(shop: Served, opened: Any, tmp_path: Path) -> None:
    folder = Path(os.environ.get("PICTURES") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    taken = []
    for name, (width, height) in SHOTS.items():
        page = opened(shop.url, "/?run=cents-1", width=width, height=height, reduced_motion="reduce")
        expect(page.locator('svg .node[data-node="money"] .sign')).to_contain_text("↻1", timeout=WORK)
        expect(page.locator("#queue")).to_contain_text("testing", timeout=WORK)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            taken.append(folder / f"{name}-{scheme}.png")
            page.screenshot(path=taken[-1])
    page = opened(shop.url, "/?run=cents-1&node=money", width=1280, height=680, reduced_motion="reduce")
    expect(page.locator("#detail .attempts")).to_contain_text("was restarted after", timeout=WORK)
    expect(page.locator("svg .node.chosen")).to_be_visible()
    taken.append(folder / "web-node.png")
    page.screenshot(path=taken[-1])
    assert all(0 < picture.stat().st_size < LARGEST for picture in taken), [one.stat().st_size for one in taken]
