// Head of the page: the run, its status, its progress, and the actions on it.

import { ask } from "./ask.js";
import { el, keyed, say, set } from "./dom.js";
import { confirmed } from "./notice.js";
import { runWord, tally } from "./state.js";
import { dollarsOf, signOf, stateOf, wordOf } from "./words.js";

const ORDER = ["landed", "unchanged", "landing", "working", "asking", "parked", "failed", "skipped", "waiting"];
const RUNNING = new Set(["running", "new", "starting", "waiting"]);

/** The head of `run`, in `place`; `act` posts a change. */
export function runHead(place, run, act) {
  const picker = el("select", { "aria-label": "Run", onchange: () => { location.href = `/?run=${encodeURIComponent(picker.value)}`; } });
  const status = el("span", { class: "pill" });
  const goal = el("p", { class: "goal" });
  const bar = el("div", { class: "bar", role: "img" }, ORDER.map(state => el("span", { class: `s-${state}`, hidden: true })));
  const far = el("span", { class: "far" });
  const cost = el("span", { class: "cost" });
  const button = (label, data, kind, question) => el("button", {
    type: "button", class: kind, hidden: true, dataset: { action: data },
    onclick: async event => {
      if (!question || await confirmed(question, label)) await act("actions", { action: data }, event.currentTarget);
    },
  }, label);
  const buttons = {
    stop: button("Stop", "stop", "", "Stop this run gracefully? Work under way is kept; Resume continues it."),
    resume: button("Resume", "resume", "primary"),
    again: el("button", { type: "button", class: "primary", hidden: true, dataset: { action: "again" }, onclick: event => again(event.currentTarget) }, "Retry failed"),
  };
  let failed = [];

  /** Retry the failed nodes that a person chooses. */
  async function again(control) {
    const options = failed.map(one => ({ value: one.node, label: [one.node, one.reason?.split("\n")[0]].filter(Boolean).join(": ") }));
    const answer = await ask({ title: "Retry the failed nodes of this run?", lines: ["Each gets a new attempt, with the reason of its failure. Those that you do not choose stay failed."],
      yes: "Retry", kind: "primary", options: options.length > 1 ? options : undefined });
    if (!answer) return;
    const some = options.length > 1 && answer.chosen.length < options.length;
    await act("actions", { action: "again", ...(some && { nodes: answer.chosen }) }, control);
  }

  const reading = el("span", { class: "pill", hidden: true, title: "The token of this address allows no changes" }, "read only");
  place.append(el("div", { class: "run-id" }, picker, status, reading), el("div", { class: "progress" }, bar, far, cost), goal,
    el("div", { class: "row run-actions" }, Object.values(buttons)));

  place.hidden = true; // until it is filled, so that nothing moves

  function show(state, waits) {
    place.hidden = false;
    const word = runWord(state, waits);
    const now = word === "waiting for you" ? "asking" : word === "nothing at work" ? "waiting" : stateOf(word);
    set(status, "class", `pill s-${now}`);
    say(status, `${signOf(now)} ${word}`);
    say(goal, state.goal || state.title || "");
    set(goal, "title", state.goal || null);
    progress(state);
    say(cost, dollarsOf(state.costs?.usd, state.costs?.limits?.run));
    reading.hidden = state.write !== false;
    const running = RUNNING.has(state.status), can = state.write !== false;
    buttons.stop.hidden = !(can && running);
    buttons.resume.hidden = !(can && !running && !["done", "failed"].includes(state.status));
    failed = Object.values(state.nodes).filter(node => node.agent && node.status === "failed");
    buttons.again.hidden = !(can && state.status === "failed");
    set(document.body, "data-waits", waits ? String(waits) : null);
  }

  function progress(state) {
    const found = tally(state), all = Object.values(found).reduce((sum, n) => sum + n, 0);
    for (const part of bar.children) {
      const of = part.className.slice(2);
      part.hidden = !found[of];
      part.style.flexGrow = String(found[of] ?? 0);
    }
    set(bar, "aria-label", ORDER.filter(name => found[name]).map(name => `${found[name]} ${wordOf(name)}`).join(", "));
    say(far, `${found.landed ?? 0} of ${all}`);
  }

  /** List the runs, each with its status. */
  function list(runs) {
    const known = runs.some(one => one.run === run) ? runs : [{ run }, ...runs];
    keyed(picker, known, one => one.run, one => el("option", { value: one.run, selected: one.run === run }), (option, one) =>
      say(option, [signOf(one.gates ? "asking" : one.status), [one.run, one.pipeline].filter(Boolean).join(" · ")].join(" ")));
  }

  list([]);
  return { show, list };
}
