// Notices without their own place on the page: to a screen reader, as a line for a moment, in the tab's title.

import { render } from "./view.js";

const SHOWN = 6000; // milliseconds

/** Announce an important change to screen readers. */
export function announce(text) {
  const region = document.getElementById("announcements");
  render("", region);
  requestAnimationFrame(() => render(text, region)); // the same words again are a new announcement
}

let hiding;

/** Show a line for a moment: the result of an action. */
export function toast(text, bad = false) {
  const box = document.getElementById("toast");
  render(text, box);
  box.className = bad ? "toast bad" : "toast";
  box.hidden = false;
  clearTimeout(hiding);
  hiding = setTimeout(() => {
    box.hidden = true;
  }, SHOWN);
}

/** Run an action and show its result: its answer, or true; false if it failed. */
export async function attempt(doing) {
  try {
    const done = await doing();
    if (done?.message) toast(done.message);
    return done ?? true;
  } catch (problem) {
    toast(problem.message, true);
    return false;
  }
}

/** Set the tab's title and picture: how many items wait, and the run. */
export function tab(name, waits) {
  const title = `${waits ? `(${waits}) ` : ""}${name ? `${name} · ` : ""}garrison`;
  if (document.title === title) return;
  document.title = title;
  const count = waits > 9 ? "9+" : String(waits);
  const [fill, mark] = waits
    ? [
        "#b45309",
        `<text x="16" y="23" font-family="sans-serif" font-size="20" font-weight="700" text-anchor="middle" fill="#fff">${count}</text>`,
      ]
    : ["#3f6f5f", '<path d="M9 17l5 5 9-11" fill="none" stroke="#fff" stroke-width="3.5"/>'];
  const ground = `<rect width="32" height="32" rx="7" fill="${fill}"/>`;
  const picture = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">${ground}${mark}</svg>`;
  document.getElementById("favicon").setAttribute("href", `data:image/svg+xml,${encodeURIComponent(picture)}`);
}

/** Let the first link of the page skip to an address, in these words if they are given. */
export function skipTo(address, words = "") {
  const skip = document.querySelector(".skip");
  skip.setAttribute("href", address);
  if (words) skip.textContent = words;
}

const LINK = { live: "Live", lost: "Reconnecting…", off: "Not connected" };

/** Show why the server has no room for this page; it tries again. */
export const full = why => toast(`${why}.`, true);

/** Show the state of the connection. */
export function link(state) {
  const place = document.getElementById("link");
  place.dataset.state = state;
  place.querySelector(".word").textContent = LINK[state];
}
