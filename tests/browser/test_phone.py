"""A phone: pairing by a code, sessions by its key, its rights, messages and the question that a message opens; and the
notifications of a desktop."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import real_texts
from playwright.sync_api import expect
from real_texts import gate
from served_run import serving

from garrison.notify import devices
from support import wait_for
from top_support import HomeBuilder, home_builder

PHONE = {"width": 390, "height": 844, "has_touch": True}
SUBSCRIBED = """
PushManager.prototype.subscribe = async function (options) {
  window.subscribed = options.applicationServerKey;
  return { unsubscribe: async () => true, toJSON: () => ({ endpoint: window.endpoint, keys: KEYS }) };
};
"""
"""Stands for a browser's push service, which no test can reach."""
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
"""Record notifications, which a browser without a desktop cannot show; the page has no focus."""
KEYS = {"p256dh": "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4",
        "auth": "BTBZMqHH6r4Tts7J_aSIgg"}
"""Keys of the example of RFC 8291."""


LABELS = ("Yes", *real_texts.ANSWERS)
OPENED = {"at": "2026-01-31T12:00:00.000000Z"}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[tuple[Path, HomeBuilder, Any]]:
    """Yield a home with a run in which a gate is open."""
    with home_builder(tmp_path) as builder:
        guardian = builder.run("r1", "a", "b")
        guardian.append("gate", gate("a", "Ship it?", *LABELS, **OPENED), builder.now())
        yield tmp_path, builder, guardian
        guardian.close()


def origin(url: str) -> str:
    return url.partition("/?")[0]


def paired(opened: Any, home: Path, url: str, may: str) -> Any:
    """Return a phone's page, paired by the address of a QR code."""
    code = devices.make_offer(home, devices.DECIDE, time.time())
    page = opened(f"{origin(url)}/#pair.{code}", **PHONE)
    expect(page.get_by_role("heading", name="Pair this device")).to_be_visible()
    assert page.evaluate("location.hash") == "", "the code is removed from the address"
    page.get_by_label("Name").fill("Phone")
    page.get_by_role("radio", name=may).check()
    page.get_by_role("button", name="Pair").click()
    expect(page.locator("#waits")).to_contain_text("Ship it?")
    return page


def test_a_paired_phone_keeps_its_access_until_it_is_revoked(home: Any, opened: Any) -> None:
    """Also over a closed tab and a restarted server; the key cannot be exported from the browser."""
    root = home[0]
    with serving(root) as url:
        page = paired(opened, root, url, "decide")
        context, address = page.context, origin(url)
        key = page.evaluate("""() => new Promise(resolve => {
          const opening = indexedDB.open("garrison-device", 1);
          opening.onsuccess = () => {
            const got = opening.result.transaction("device").objectStore("device").get("device");
            got.onsuccess = () => {
              opening.result.close();
              const taken = crypto.subtle.exportKey("pkcs8", got.result.key);
              taken.then(() => resolve("taken out"), error => resolve(error.name));
            };
          };
        })""")
        assert key == "InvalidAccessError"
        page.close()
        page = context.new_page()
        page.goto(f"{address}/?run=r1")
        expect(page.get_by_role("button", name="Yes", exact=True)).to_be_visible()
    [device] = devices.list_devices(root)
    assert (device.name, device.may) == ("Phone", "decide")
    page.close()
    with serving(root, port=int(address.rpartition(":")[2])):
        page = context.new_page()
        page.goto(f"{address}/?run=r1")
        expect(page.locator("#waits")).to_contain_text("Ship it?")
        tab = context.new_page()
        tab.goto(address)
        expect(tab.locator("#link")).to_have_text("Live")
        devices.revoke(root, "Phone")
        opened.made[-1][1].allowed += ["401", "404", "ERR_"]
        page.reload()
        for each in (page, tab):
            expect(each.get_by_role("heading", name="No access")).to_be_visible()
            expect(each.locator("body")).not_to_contain_text("Ship it?")
            assert each.evaluate("sessionStorage.length") == 0
        page.get_by_text("Pair this device with a code").click()
        code = devices.make_offer(root, devices.WATCH, time.time())
        page.get_by_label("Code").fill(devices.spell(code).lower())
        page.get_by_role("radio", name="watch").check()
        page.get_by_role("button", name="Pair").click()
        expect(page.locator("#waits")).to_contain_text("Ship it?")
        assert devices.list_devices(root)[0].may == "watch", "paired again, by a typed code"


def test_a_watching_phone_can_decide_nothing_and_a_code_works_once(home: Any, opened: Any) -> None:
    root = home[0]
    with serving(root) as url:
        page = paired(opened, root, url, "watch")
        page.goto(f"{origin(url)}/?run=r1")
        expect(page.locator("#waits")).to_contain_text("Ship it?")
        expect(page.get_by_role("button", name="Yes", exact=True)).to_have_count(0)
        page.watch.allowed += ["403", "409", "400"]
        posted = page.evaluate("""async () => (await fetch("/api/runs/r1/gates/a%231", {
          method: "POST", body: '{"choice": "Yes"}', headers: { "Content-Type": "application/json", "X-Garrison": "1",
          Authorization: "Bearer " + JSON.parse(sessionStorage.getItem("garrison-session")).bearer } })).status""")
        assert posted == 403
        other = opened(f"{origin(url)}/#pair.{devices.make_offer(root, devices.DECIDE, time.time() - 121)}", **PHONE)
        other.watch.allowed.append("409")
        other.get_by_role("button", name="Pair").click()
        expect(other.get_by_role("alert").first).to_contain_text("has expired")
        code = devices.make_offer(root, devices.WATCH, time.time())
        for given, may, told in ((code[::-1], "watch", "is wrong"), (code, "decide", "lets a device watch")):
            other.watch.allowed.append("400")
            other.goto("about:blank")
            other.goto(f"{origin(url)}/#pair.{given}")
            other.get_by_role("radio", name=may).check()
            other.get_by_role("button", name="Pair").click()
            expect(other.locator(".pairing [role=alert]")).to_contain_text(told)
        assert len(devices.list_devices(root)) == 1


def test_messages_go_only_to_push_services_and_open_their_question(home: Any, opened: Any) -> None:
    root, builder, guardian = home
    with serving(root) as url:
        page = paired(opened, root, url, "decide")
        page.watch.allowed += ["400", "409"]
        page.context.grant_permissions(["notifications"], origin=origin(url))
        page.add_init_script(SUBSCRIBED.replace("KEYS", json.dumps(KEYS)))
        page.goto(f"{origin(url)}/?run=r1")
        expect(page.locator("#link")).to_have_text("Live")
        for endpoint, told in (("https://192.168.1.1/x", "192.168.1.1"),
                               ("https://fcm.googleapis.com/fcm/send/x", "messages are on")):
            page.evaluate("at => { window.endpoint = at; }", endpoint)
            page.get_by_role("button", name="Notifications").click()
            page.get_by_role("checkbox", name="Messages to Phone").click()
            expect(page.locator("#toast")).to_contain_text(told)
            page.get_by_role("button", name="Close").click()
        [device] = devices.list_devices(root)
        assert device.push is not None and device.push.endpoint == "https://fcm.googleapis.com/fcm/send/x"
        assert len(page.evaluate("window.subscribed")) == 87, "the key of this home's pushes"
        key = "gate:a#1:2026-01-31T12:00:00.000000Z"
        page.goto(f"{origin(url)}/?run=r1&notice={key.replace('#', '%23')}")
        expect(page.locator(".card.pointed")).to_contain_text("Ship it?")
        page.locator(".card.pointed").get_by_role("button", name="Yes", exact=True).click(trial=True)
        assert "notice" not in page.url
        guardian.append("signal", {"id": "s1", "type": "INPUT_RESPONSE", "node": "a", "attempt": 0,
                                   "by": "the device Tablet",
                                   "flow": {"node": "a", "event": "finished", "place_id": "a#1"}}, builder.now())
        guardian.append("gate", {**gate("a", "Ship it?", *LABELS, **OPENED), "closed": True}, builder.now())
        page.goto(f"{origin(url)}/?run=r1&notice={key.replace('#', '%23')}")
        expect(page.locator("#toast")).to_contain_text("through the device Tablet")
        page.watch.allowed.append("404")
        late = page.evaluate("""async () => (await import("/static/api.js")).act("runs/r1/gates/a%231", {
          choice: "Yes" }).catch(problem => problem.message)""")
        assert "your answer was not recorded" in late and "answered through the device Tablet" in late


def test_a_push_is_shown_and_opens_its_question_in_the_open_page(home: Any, opened: Any) -> None:
    """A browser without a display shows no notifications: those of its worker are recorded."""
    with serving(home[0]) as url:
        page = opened(url)
        session, found = page.context.new_cdp_session(page), []
        session.on("ServiceWorker.workerRegistrationUpdated", lambda told: found.extend(told["registrations"]))
        session.send("ServiceWorker.enable")
        page.evaluate("navigator.serviceWorker.register('/service_worker.js').then(() => navigator.serviceWorker.ready)"
                      ".then(() => 1)")
        wait_for("its worker", lambda: page.context.service_workers)
        [worker] = page.context.service_workers
        worker.evaluate("() => { self.shown = []; registration.showNotification = async (title, { body, data }) => {"
                        " shown.push([title, body, data.path]); }; }")
        path = "/?run=r1&node=a"
        for pushed in (json.dumps({"title": "garrison: r1", "body": "a waits for you", "path": path}),
                       json.dumps({"title": "x", "path": "https://evil.example/"}), "{"):
            session.send("ServiceWorker.deliverPushMessage", {
                "origin": origin(url), "registrationId": found[-1]["registrationId"], "data": pushed})
        wait_for("all are shown", lambda: len(worker.evaluate("shown")) == 3)
        assert worker.evaluate("shown") == [["garrison: r1", "a waits for you", path],
                                            ["x", "Something waits for you", "/"],
                                            ["garrison", "Something waits for you", "/"]]
        page.reload()
        worker.evaluate("""path => {
          const event = new ExtendableEvent("notificationclick");
          self.dispatchEvent(Object.assign(event, { notification: { close() {}, data: { path } } }));
        }""", path)
        expect(page).to_have_url(origin(url) + path)
        page.close()


def test_desktop_notifications_are_off_until_turned_on_and_silent_by_default(home: Any, opened: Any) -> None:
    root, builder, guardian = home
    with serving(root) as url:
        page = opened("about:blank")
        page.watch.home = origin(url)
        page.watch.allowed.append("409")
        page.add_init_script(RECORDED)
        page.goto(f"{url}&run=r1")
        expect(page.locator("#link")).to_have_text("Live")
        guardian.append("gate", gate("b", "Ship?", *LABELS, **OPENED), builder.now())
        expect(page.locator("#waits")).to_contain_text("Ship?")
        assert page.evaluate("[window.asked, window.shown]") == [0, []], "off until it is turned on"
        control = page.get_by_role("button", name="Notifications")
        control.click()
        box = page.get_by_role("checkbox", name="Notify me")
        expect(box).not_to_be_checked()
        box.check()
        page.get_by_role("button", name="Close").click()
        expect(control).to_have_text("Notifications on")
        guardian.append("gate", gate("b", "<b>And \u202ethis?", *LABELS, **OPENED, place="b#2"), builder.now())
        expect(page.locator("#waits")).to_contain_text("<b>And")
        [(title, body, silent, tag)] = page.evaluate("window.shown")
        assert (title, body, silent) == ("garrison: r1", "b waits for you: <b>And this?", True)
        assert page.evaluate("window.asked") == 1 and tag.startswith("garrison r1 gate:b#2")
        control.click()
        page.get_by_role("checkbox", name="with a sound").check()
        page.get_by_role("button", name="Close").click()
        guardian.append("run", {"status": "failed", "reason": "red"}, builder.now())
        expect(page.get_by_role("button", name="Retry failed")).to_be_visible()
        assert page.evaluate("window.shown.slice(1)") == [
            ["garrison: r1", "run failed, 0 of 2 landed: red", False, "garrison r1 run:failed:1"]]
