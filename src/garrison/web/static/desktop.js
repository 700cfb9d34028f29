// Notifications of the desktop: what a person is to be told of the run, by the rules of `[notify]`, while this page is not
// looked at. They are off until the user turns them on, and silent until the user wants a sound.

import { el, say, set } from "./dom.js";
import { legible } from "./legible.js";
import { toast } from "./notice.js";

const ON = "garrison.notifications";
const SOUND = "garrison.notifications.sound";
const GRANTED = "granted";
const LONGEST = 300; // characters of a notification

const wanted = () => localStorage.getItem(ON) !== null && "Notification" in window && Notification.permission === GRANTED;

/** The notifications of `run`, controlled by `button`, which is shown from now on; `choose` opens a node. */
export function desktopNotices(button, run, choose) {
  let known = null; // keys of what was open already
  button.addEventListener("click", ask);
  paint();

  function paint() {
    say(button, wanted() ? "Notifications on" : "Notifications");
    set(button, "data-on", wanted());
    set(button, "data-ready", true);
  }

  /** Take what a person is to be told now; what is new is shown, unless the page is looked at. */
  function show(notices) {
    const fresh = known ? notices.filter(one => !known.has(one.key)) : [];
    known = new Set(notices.map(one => one.key));
    if (!wanted() || document.hasFocus()) return;
    for (const one of fresh) {
      const made = new Notification(`garrison: ${run}`, {
        body: legible(one.text).slice(0, LONGEST), silent: localStorage.getItem(SOUND) === null,
        tag: `garrison ${run} ${one.key}`, // so that several tabs show one
      });
      made.onclick = () => { window.focus(); if (one.node) choose(one.node); made.close(); };
    }
  }

  function ask() {
    const box = (label, checked, onchange) => el("label", {}, el("input", { type: "checkbox", checked, onchange }), ` ${label}`);
    const dialog = el("dialog", { "aria-labelledby": "notify-title", class: "keys" },
      el("h2", { id: "notify-title" }, "Notifications of the desktop"),
      el("p", {}, "While this page is open and you look elsewhere: questions and gates, what is parked, and a run that failed, "
        + "or whatever `on` of [notify] in config.toml lists."),
      box("Notify me", wanted(), event => turn(event.target)),
      box("with a sound", localStorage.getItem(SOUND) !== null, event => store(SOUND, event.target.checked)),
      el("div", { class: "row end" }, el("button", { type: "button", onclick: () => dialog.close() }, "Close")));
    dialog.addEventListener("close", () => { dialog.remove(); paint(); });
    document.body.append(dialog);
    dialog.showModal();
  }

  async function turn(box) {
    if (box.checked && !("Notification" in window && await Notification.requestPermission() === GRANTED)) {
      box.checked = false;
      toast("This browser allows no notifications of this page; its settings of the site change that.", true);
    }
    store(ON, box.checked);
  }

  return { show };
}

function store(key, on) {
  if (on) localStorage.setItem(key, "1");
  else localStorage.removeItem(key);
}
