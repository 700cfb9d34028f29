// Rail of the crew in the chat: an icon each, which of them are at work, and who handed over to whom, as the server's
// events say. An event is shown at once; of several that arrive together each has a moment of its own.

import { agentIcon } from "./agent_icons.js";
import { el, panel, say, set } from "./dom.js";

export const BUTLER = "butler";
const AT_WORK = "at work";
const SEEN = 80; // milliseconds that each change stays at least; the mark of a hand-over stays until the next answer

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
  const titles = new Map(crew.map(one => [one.agent, one.title]));
  let changed = 0, last = "", doing = AT_WORK, shown = Promise.resolve();

  function member(name, title, about) {
    const made = el("li", { class: "agent", title: about || null, dataset: { testid: `agent-${name}`, agent: name } },
      el("span", { class: "picture" }, agentIcon(name), el("span", { class: "sign", "aria-hidden": "true" }, "○"),
        el("span", { class: "hand-over", hidden: true })), el("span", { class: "name" }, title), el("span", { class: "kind" }));
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

  /** Mark that `to` has the work from `from`; an agent without a mark was handed nothing in this answer. */
  function mark(to, from) {
    const place = members.get(to)?.querySelector(".hand-over");
    if (!place) return;
    place.hidden = !from;
    say(place, from ? "→" : "");
    set(place, "title", from ? `from ${titles.get(from) ?? from}` : null);
    set(place, "data-from", from || null);
  }

  const seen = () => {
    const left = changed + SEEN - performance.now();
    return left > 0 ? new Promise(resolve => setTimeout(resolve, left)) : null;
  };

  /** Show an event once those before it were seen; the text of the answer does not wait for that. */
  function moved(event) {
    shown = shown.then(seen).then(() => show(event));
  }

  function show(event) {
    doing = AT_WORK;
    const name = event.agent ?? event.to;
    if (name && !members.has(name)) member(name, name, "");
    if (event.type === "agent_start" && name === BUTLER) [...members.keys()].forEach(one => mark(one, ""));
    if (event.type === "agent_delegate") mark(event.to, event.from ?? BUTLER);
    if (event.type === "agent_complete" && name !== BUTLER) last = name;
    if (event.type === "agent_resume") mark(name, last);
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
