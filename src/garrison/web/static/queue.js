// The merge queue: what is on its way into the target branch, in order.

import { part } from "./api.js";
import { el, empty, keyed, panel, say, set } from "./dom.js";
import { sure } from "./notice.js";
import { reset, since } from "./time.js";
import { signOf, stateOf } from "./words.js";

const WORDS = { candidate: "being built", testing: "testing the merged tree", landing: "landing", landing_blocked: "blocked", rejected: "gate is red", superseded: "superseded" };
const FINAL = new Set(["landed", "conflict", "rejected", "cancelled", "superseded"]);
const SHOWN = 60; // entries that ended, at most

/** The panel; `choose` opens a node, `act` posts a change. */
export function queuePanel(choose, act) {
  const toggle = el("button", { type: "button", class: "quiet", hidden: true, onclick: event =>
    act("queue", { action: toggle.dataset.action }, event.currentTarget) });
  const number = el("span", { class: "number" });
  const { section, body } = panel("queue", "Merge queue", number, toggle);
  const why = el("p", { class: "why", hidden: true });
  const list = el("ol", { class: "entries" });
  const nothing = empty("Nothing has been handed in to be merged.");
  body.append(why, list, nothing);

  function show(state) {
    const { queue } = state, can = state.write !== false;
    const open = queue.entries.filter(entry => !FINAL.has(entry.state));
    const ended = queue.entries.filter(entry => FINAL.has(entry.state)).slice(-SHOWN).reverse();
    say(number, open.length || "");
    toggle.hidden = !can;
    toggle.dataset.action = queue.paused ? "resume" : "pause";
    say(toggle, queue.paused ? "Go on" : "Pause");
    set(toggle, "aria-label", queue.paused ? "Let the merge queue go on" : "Pause the merge queue");
    why.hidden = !queue.paused;
    say(why, `‖ Paused${queue.reason ? `: ${queue.reason}` : ""}`);
    nothing.hidden = queue.entries.length > 0;
    keyed(list, [...open, ...ended], entry => `${entry.id} ${entry.state} ${can}`, entry => make(entry, can), update);
  }

  function make(entry, can) {
    return el("li", { class: `entry s-${stateOf(entry.state)}` },
      el("span", { class: "sign", "aria-hidden": "true" }, signOf(entry.state)),
      el("div", { class: "who" },
        el("button", { type: "button", class: "link-like name", onclick: () => choose(entry.node) }, entry.node || entry.branch),
        el("span", { class: "kind" }, WORDS[entry.state] ?? entry.state)),
      since(entry.since), el("p", { class: "doing" }), can ? el("div", { class: "row" }, buttons(entry)) : null);
  }

  function buttons(entry) {
    const does = (label, action, question) => el("button", {
      type: "button", class: "quiet", "aria-label": `${label}: ${entry.node || entry.branch}`,
      onclick: async event => {
        const control = event.currentTarget;
        if (!question || await sure(question, label)) await act(`queue/${part(entry.id)}`, { action }, control);
      },
    }, label);
    if (entry.state === "held") return [does("Let go", "unhold"), does("Withdraw", "cancel", `Withdraw ${entry.node} from the queue?`)];
    if (entry.state === "rejected" || entry.state === "conflict") return [does("Try again", "retry")];
    if (FINAL.has(entry.state) || entry.state === "landing") return [];
    return [does("Hold", "hold"), does("Withdraw", "cancel", `Withdraw ${entry.node} from the queue?`)];
  }

  function update(element, entry) {
    const doing = element.querySelector(".doing");
    say(doing, entry.detail || entry.branch);
    set(doing, "title", `${entry.branch}${entry.detail ? `: ${entry.detail}` : ""}`);
    reset(element.querySelector("time"), entry.since);
  }

  return { section, show };
}
