// Panel of the merge queue: the entries in order, and what landed last.

import { part } from "./api.js";
import { el, empty, keyed, panel, say, set } from "./dom.js";
import { legibleName } from "./legible.js";
import { confirmed } from "./notice.js";
import { reset, since } from "./time.js";
import { signOf, stateOf } from "./words.js";

const SHOWN = 8; // landed entries

/** The panel; `choose` opens a node, `act` posts a change. */
export function queuePanel(choose, act) {
  const toggle = el("button", { type: "button", class: "quiet", hidden: true, onclick: event =>
    act("queue", { action: toggle.dataset.action, target: toggle.dataset.target }, event.currentTarget) });
  const number = el("span", { class: "number" });
  const { section, body } = panel("queue", "Merge queue", number, toggle);
  const why = el("p", { class: "why", hidden: true });
  const list = el("ol", { class: "entries" });
  const landed = el("ol", { class: "entries" });
  const nothing = empty("Nothing is queued.");
  body.append(why, list, landed, nothing);

  function show(state) {
    const { queue } = state, can = state.write !== false;
    const last = state.timeline.filter(line => line.kind === "landed" && line.node).slice(-SHOWN).reverse();
    say(number, queue.entries.length || "");
    toggle.hidden = !can || !(queue.entries.length || queue.paused);
    toggle.dataset.action = queue.paused ? "resume" : "pause";
    toggle.dataset.target = queue.target ?? "";
    say(toggle, queue.paused ? "Resume" : "Pause");
    set(toggle, "aria-label", queue.paused ? "Resume the merge queue" : "Pause the merge queue");
    why.hidden = !queue.paused;
    say(why, `‖ Paused${queue.target ? `, ${legibleName(queue.target)}` : ""}${queue.reason ? `: ${queue.reason}` : ""}`);
    nothing.hidden = queue.entries.length + last.length > 0;
    keyed(list, queue.entries, entry => `${entry.id} ${entry.state} ${can}`, entry => make(entry, can), update);
    keyed(landed, last, line => line.id, line => row("landed", line.node, "landed", line.at));
  }

  function row(state, node, word, at, ...more) {
    return el("li", { class: `entry s-${stateOf(state)}` },
      el("span", { class: "sign", "aria-hidden": "true" }, signOf(state)),
      el("div", { class: "who" }, el("button", { type: "button", class: "link-like name", onclick: () => choose(node) }, node),
        el("span", { class: "kind" }, word)), since(at), ...more);
  }

  const make = (entry, can) => row(entry.state, entry.node, entry.word ?? entry.state, entry.since,
    el("p", { class: "doing" }), can ? el("div", { class: "row" }, buttons(entry)) : null);

  function buttons(entry) {
    const does = (label, action, question) => el("button", {
      type: "button", class: "quiet", "aria-label": `${label}: ${entry.node}`,
      onclick: async event => {
        const control = event.currentTarget;
        if (!question || await confirmed(question, label)) await act(`queue/${part(entry.id)}`, { action }, control);
      },
    }, label);
    const cancel = does("Cancel", "cancel", `Cancel the merge entry of ${entry.node}?`);
    if (entry.state === "held") return entry.word === "waiting for approval" ? [cancel] : [does("Release", "unhold"), cancel];
    return entry.state === "landing" ? [] : [does("Hold", "hold"), cancel];
  }

  function update(element, entry) {
    const doing = element.querySelector(".doing");
    say(doing, entry.detail || legibleName(entry.branch));
    set(doing, "title", `${legibleName(entry.branch)}${entry.detail ? `: ${entry.detail}` : ""}`);
    reset(element.querySelector("time"), entry.since);
  }

  return { section, show };
}
