// Panel of the crew in the chat: which of them are at work, as the server's events say, in their order, each shown long
// enough to be seen.

import { el, panel, say, set } from "./dom.js";

export const BUTLER = "butler";
const AT_WORK = "at work";
const SEEN = 700; // milliseconds that each change of the rail stays at least

/**
 * The rail's panel.
 * @param {Array<{agent: string, title: string, what: string}>} crew the butler first
 * @returns {{section: Element, moved: function(Object), seen: function(): Promise, rest: function()}} `moved` gets
 *     an event; `seen` resolves when all of them were shown; `rest`: none works any more
 */
export function chatRail(crew) {
  const { section, body } = panel("rail", "Crew");
  const list = el("ul", { class: "agents", dataset: { testid: "agent-rail" } });
  const members = new Map();
  body.append(list);
  const working = new Set();
  let changed = 0, doing = AT_WORK, shown = Promise.resolve();

  function member(name, title, about) {
    const made = el("li", { class: "agent", dataset: { testid: `agent-${name}`, agent: name } },
      el("span", { class: "sign", "aria-hidden": "true" }, "○"), el("div", { class: "who" }, el("span", { class: "name" }, title),
        el("span", { class: "kind" })), el("p", { class: "doing" }, about));
    members.set(name, made);
    list.append(made);
  }

  function paint() {
    for (const [name, made] of members) {
      const active = working.has(name);
      set(made, "class", `agent${active ? " active s-working" : ""}`);
      say(made.querySelector(".sign"), active && doing === AT_WORK ? "◐" : "○");
      say(made.querySelector(".kind"), active ? doing : "");
    }
    changed = performance.now();
  }

  const seen = () => new Promise(resolve => setTimeout(resolve, Math.max(0, changed + SEEN - performance.now())));

  /** Show an event once those before it were seen; the text of the answer does not wait for that. */
  function moved(event) {
    shown = shown.then(seen).then(() => show(event));
  }

  function show(event) {
    doing = AT_WORK;
    const name = event.agent ?? event.to;
    if (name && !members.has(name)) member(name, name, "");
    if (event.type === "agent_resume" || (event.type === "agent_start" && name === BUTLER)) working.clear();
    if (event.type === "agent_start" || event.type === "agent_resume") working.add(name);
    if (event.type === "agent_delegate") { working.delete(event.from ?? BUTLER); working.add(name); }
    if (event.type === "agent_complete" && name !== BUTLER) working.delete(name);
    if (!working.size) working.add(BUTLER);
    paint();
  }

  /** None works any more; the butler listens. */
  function rest() {
    working.clear();
    working.add(BUTLER);
    doing = "listening";
    paint();
  }

  for (const one of crew) member(one.agent, one.title, one.what);
  return { section, moved, seen: () => shown.then(seen), rest };
}
