// Notices without a place of their own on the page: to a screen reader, as a line for a moment, in the tab's title.

import { NO_ACCESS } from "./api.js";
import { el, say, set } from "./dom.js";

const SHOWN = 6000; // milliseconds

/** Announce an important change to screen readers. */
export function announce(text) {
  const region = document.getElementById("announcements");
  region.textContent = "";
  requestAnimationFrame(() => say(region, text)); // the same words again are a new announcement
}

let hiding;

/** Show a line for a moment: the result of an action. */
export function toast(text, bad = false) {
  const box = document.getElementById("toast");
  say(box, text);
  set(box, "class", bad ? "toast bad" : "toast");
  box.hidden = false;
  clearTimeout(hiding);
  hiding = setTimeout(() => { box.hidden = true; }, SHOWN);
}

/** Run an action and show its result; true if it succeeded. The control is disabled meanwhile. */
export async function attempt(control, doing) {
  if (control) control.disabled = true;
  try {
    const done = await doing();
    if (done?.message) toast(done.message);
    return true;
  } catch (problem) {
    toast(problem.message, true);
    return false;
  } finally {
    if (control) control.disabled = false;
  }
}

/** Set the tab's title and picture: how many items wait, and the run. */
export function tab(name, waits) {
  document.title = `${waits ? `(${waits}) ` : ""}${name ? `${name} · ` : ""}garrison`;
  const count = waits > 9 ? "9+" : String(waits);
  const [fill, mark] = waits ? ["#b45309", `<text x="16" y="23" font-family="sans-serif" font-size="20" font-weight="700" text-anchor="middle" fill="#fff">${count}</text>`]
    : ["#3f6f5f", '<path d="M9 17l5 5 9-11" fill="none" stroke="#fff" stroke-width="3.5"/>'];
  const picture = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="7" fill="${fill}"/>${mark}</svg>`;
  set(document.getElementById("favicon"), "href", `data:image/svg+xml,${encodeURIComponent(picture)}`);
}

const LINK = { live: "Live", lost: "Reconnecting…", off: "Not connected", denied: "No access" };

/** Show the state of the connection. */
export function link(state) {
  const place = document.getElementById("link");
  set(place, "data-state", state);
  say(place.querySelector(".word"), LINK[state]);
  if (state === "denied") toast(NO_ACCESS, true);
}

/** Ask for confirmation: a promise of true or false. */
export function confirmed(question, yes) {
  const answer = (label, value, kind) => el("button", { type: "button", class: kind, onclick: () => dialog.close(value) }, label);
  const dialog = el("dialog", { "aria-label": question }, el("p", {}, question),
    el("div", { class: "row end" }, answer("Not now", "", ""), answer(yes, "yes", "danger")));
  document.body.append(dialog);
  dialog.showModal();
  return new Promise(resolve => dialog.addEventListener("close", () => {
    dialog.remove();
    resolve(dialog.returnValue === "yes");
  }));
}
