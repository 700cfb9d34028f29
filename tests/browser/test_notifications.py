"""Notifications of the desktop: asked for by the user alone, silent by default, of what `[notify]` lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import expect
from served_run import serving

from top_support import home_builder

RECORDED = """
window.shown = [];
window.asked = 0;
window.Notification = class {
  static permission = "default";
  static async requestPermission() { window.asked += 1; return window.Notification.permission = "granted"; }
  constructor(title, options) { window.shown.push([title, options.body, options.silent, options.tag]); }
};
Document.prototype.hasFocus = () => false;
"""
"""Records notifications, which a browser without a desktop cannot show; the user looks elsewhere."""


def test_what_waits_is_told_once_the_user_has_turned_it_on(tmp_path: Path, opened: Any) -> None:
    def gate(node: str, text: str) -> dict[str, Any]:
        return {"place": f"{node}#1", "node": node, "kind": "human", "text": text, "type": "single_select",
                "default": "", "deadline": "", "signal": "", "options": []}

    with home_builder(tmp_path) as builder, serving(tmp_path) as url:
        guardian = builder.run("r1", "a", "b")
        page = opened("about:blank")
        page.watch.home = url.partition("/?")[0]
        page.watch.allowed.append("409")
        page.add_init_script(RECORDED)
        page.goto(f"{url}&run=r1")
        expect(page.locator("#link")).to_have_text("Live")
        guardian.append("gate", gate("a", "Ship?"), builder.now())
        expect(page.locator("#waits")).to_contain_text("Ship?")
        assert page.evaluate("[window.asked, window.shown]") == [0, []], "off until it is turned on"
        control = page.get_by_role("button", name="Notifications")
        control.click()
        box = page.get_by_role("checkbox", name="Notify me")
        expect(box).not_to_be_checked()
        box.check()
        page.get_by_role("button", name="Close").click()
        expect(control).to_have_text("Notifications on")
        guardian.append("gate", gate("b", "<b>And \u202ethis?"), builder.now())
        expect(page.locator("#waits")).to_contain_text("<b>And")
        [(title, body, silent, tag)] = page.evaluate("window.shown")
        assert (title, body, silent) == ("garrison: r1", "b waits for you: <b>And this?", True)
        assert page.evaluate("window.asked") == 1 and tag.startswith("garrison r1 gate:b#1")
        control.click()
        page.get_by_role("checkbox", name="with a sound").check()
        page.get_by_role("button", name="Close").click()
        guardian.append("run", {"status": "failed", "reason": "red"}, builder.now())
        expect(page.get_by_role("button", name="Retry failed")).to_be_visible()
        assert page.evaluate("window.shown.slice(1)") == [
            ["garrison: r1", "run failed, 0 of 2 landed: red", False, "garrison r1 run:failed:1"]]
        guardian.close()
