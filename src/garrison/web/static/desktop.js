// Desktop notifications: news of the run for the user, by the rules of `[notify]`, while this page is not
// visible. They are off until the user turns them on, and silent until the user wants a sound.

import { openDialog } from "./dialog.js";
import { legible } from "./legible.js";
import { attempt, toast } from "./notice.js";
import { readDevice, turnOff, turnOn } from "./push.js";
import { html, useEffect, useState } from "./view.js";

const ON = "garrison.notifications";
const SOUND = "garrison.notifications.sound";
const GRANTED = "granted";
const LONGEST = 300; // characters of a notification

const wanted = () =>
  localStorage.getItem(ON) !== null && "Notification" in window && Notification.permission === GRANTED;

/** The notifications of `run`, controlled by `button`, which is shown from now on; `choose` opens a node. */
export function desktopNotices(button, run, choose) {
  let known = null; // keys of notices that were already open
  button.addEventListener("click", async () => {
    await openDialog({ class: "keys", "aria-labelledby": "notify-title" }, Choices);
    paint();
  });
  paint();

  function paint() {
    button.textContent = wanted() ? "Notifications on" : "Notifications";
    button.toggleAttribute("data-on", wanted());
    button.toggleAttribute("data-ready", true);
  }

  /** Take the current notices; new ones are shown, unless the page is visible. */
  function show(notices) {
    const fresh = known ? notices.filter(one => !known.has(one.key)) : [];
    known = new Set(notices.map(one => one.key));
    if (!wanted() || document.hasFocus()) return;
    for (const one of fresh) {
      const made = new Notification(`garrison: ${run}`, {
        body: legible(one.text).slice(0, LONGEST),
        silent: localStorage.getItem(SOUND) === null,
        tag: `garrison ${run} ${one.key}`, // so that several tabs show one
      });
      made.onclick = () => {
        window.focus();
        if (one.node) choose(one.node);
        made.close();
      };
    }
  }

  return { show };
}

const Choices = ({ close }) =>
  html`<h2 id="notify-title">Notifications of the desktop</h2>
    <p>
      While this page is open and you look elsewhere: questions, what is parked, and a run that failed, or
      whatever${" "}
      <code>on</code> of [notify] in config.toml lists.
    </p>
    <label
      ><input type="checkbox" checked=${wanted()} onChange=${event => turn(event.currentTarget)} /> Notify me</label
    >
    <label
      ><input
        type="checkbox"
        checked=${localStorage.getItem(SOUND) !== null}
        onChange=${event => store(SOUND, event.currentTarget.checked)}
      />
      with a sound</label
    >
    <${Messages} />
    <div class="row end"><button type="button" onClick=${() => close()}>Close</button></div>`;

/** Messages to a paired device while the page is closed. */
function Messages() {
  const [own, know] = useState(null);
  useEffect(() => {
    readDevice().then(know, () => {});
  }, []);
  if (!own) return null;
  if (!own.name)
    return html`<p class="kind">
      <code>garrison serve --qr</code> pairs a phone, which then gets messages while the page is closed.
    </p>`;
  const turn = async box => {
    const wanted = box.checked;
    const done = await attempt(() => (wanted ? turnOn(own.key) : turnOff()));
    box.checked = done ? wanted : !wanted;
  };
  return html`<label
    ><input type="checkbox" checked=${own.pushes} onChange=${event => turn(event.currentTarget)} /> Messages to
    ${" "}${own.name} while the page is closed</label
  >`;
}

async function turn(box) {
  if (box.checked && !("Notification" in window && (await Notification.requestPermission()) === GRANTED)) {
    box.checked = false;
    toast("Notifications are blocked for this page; allow them in the browser's settings for this site.", true);
  }
  store(ON, box.checked);
}

function store(key, on) {
  if (on) localStorage.setItem(key, "1");
  else localStorage.removeItem(key);
}
