// Times that grow older on the page. The rule of this room: one timer for all of them, and none while nobody looks.

import { el, say, set } from "./dom.js";
import { clock, millis, span } from "./words.js";

const EVERY = 5000; // milliseconds

/** An element that says how long ago a time on the wire was; `before` and `after` stand around it. */
export function since(time, before = "", after = "") {
  const made = el("time", { class: "age" });
  reset(made, time, before, after);
  return made;
}

/** Let such an element tell another time. */
export function reset(element, time, before = "", after = "") {
  const at = millis(time);
  set(element, "datetime", at === null ? null : new Date(at).toISOString());
  set(element, "title", at === null ? null : clock(time));
  Object.assign(element.dataset, { at: at ?? "", before, after });
  renew(element);
}

function renew(element) {
  const { at, before, after } = element.dataset;
  say(element, at ? `${before}${span((Date.now() - Number(at)) / 1000)}${after}` : "");
}

/** Keep the ages below these elements true. */
export function ages(...places) {
  setInterval(() => {
    if (document.hidden) return;
    for (const place of places) place.querySelectorAll("time.age").forEach(renew);
  }, EVERY);
}
