// Tabs that show one of several panels in the same place. The chosen one is in the address, so that it can be sent.

import { el, set } from "./dom.js";

const NAME = "view"; // in the address

/**
 * The tabs.
 * @param {Array<[string, string, function(boolean)]>} views name, words, and what shows (true) or hides (false) it; the first
 *     is shown unless the address names another
 * @returns {Element}
 */
export function viewSwitch(views) {
  const tabs = views.map(([name, words]) => el("button", { type: "button", class: "quiet", role: "tab", id: `view-${name}`,
    onclick: () => choose(name, true), onkeydown: event => {
      const way = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!way) return;
      const next = tabs[(tabs.indexOf(event.currentTarget) + way + tabs.length) % tabs.length];
      next.click();
      next.focus();
    } }, words));

  function choose(name, isNew = false) {
    const known = views.some(([one]) => one === name) ? name : views[0][0];
    views.forEach(([one, , reveal], at) => {
      set(tabs[at], "aria-selected", String(one === known));
      set(tabs[at], "tabindex", one === known ? "0" : "-1");
      reveal(one === known);
    });
    if (isNew) keep(known);
  }

  function keep(name) {
    const address = new URLSearchParams(location.search);
    if (name === views[0][0]) address.delete(NAME);
    else address.set(NAME, name);
    history.replaceState(null, "", `${location.pathname}?${address}`);
  }

  choose(new URLSearchParams(location.search).get(NAME));
  return el("div", { class: "views", role: "tablist", "aria-label": "What to show of the run" }, tabs);
}
