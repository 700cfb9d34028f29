// Ages on the page: one timer for all of them, and none while the page is hidden.

import { el, say, set } from "./dom.js";
import { clock, millis, span } from "./words.js";

const EVERY = 5000; // milliseconds

/** An element with the age of a time on the wire, between `before` and `after`. */
export function since(time, before = "", after = "") {
  const made = el("time", { class: "age" });
  reset(made, time, before, after);
  return made;
}

/** Give such an element another time. */
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

/** Keep the ages below these elements up to date. */
export function ages(...places) {
  setInterval(() => {
    if (document.hidden) return;
    for (const place of places) place.querySelectorAll("time.age").forEach(renew);
  }, EVERY);
}
