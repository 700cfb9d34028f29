// Panel of one node: what happened to it and why, its attempts and incarnations, its log and its transcript. All of it is
// requested again whenever something happened to the node.

import { get, part } from "./api.js";
import { changesView } from "./changes.js";
import { el, empty, keyed, say, set } from "./dom.js";
import { legible, legibleName } from "./legible.js";
import { actionButton, answerForm, possible } from "./node_actions.js";
import { logView, transcriptView } from "./node_files.js";
import { shown } from "./state.js";
import { changedSoFar, clock, count, dollarsOf, nodeWord, signOf, stateOf, tokens, usually, wordOf } from "./words.js";

const TABS = [["story", "Why"], ["changes", "Changes"], ["log", "Log"], ["transcript", "Transcript"], ["task", "Task"]];
const ATTEMPTS = 3; // shown, the last ones
const TAIL = 2000; // characters of a failed attempt's log
const SETTLE = 150; // milliseconds between an event and the request for what it changed
const OF = { runner: "runner: ", orchestrator: "agent: " }; // whose process a line is about

/** The panel in `place`; `act` posts a change, `close` is called by the close button. */
export function detailPanel(place, run, act, close) {
  const title = el("h2", { tabindex: "-1", id: "detail-title" });
  const status = el("span", { class: "pill" });
  const label = el("p", { class: "goal" });
  const doing = el("p", { class: "doing" });
  const line = el("p", { class: "now mono", title: "The last line of its output", hidden: true });
  const actions = el("div", { class: "row" });
  const tabs = el("div", { class: "tabs", role: "tablist", "aria-label": "About this node" });
  const attempts = el("select", { "aria-label": "Attempt", onchange: () => turn(tab) });
  const bodies = Object.fromEntries(TABS.map(([name]) => [name, el("div", {
    class: `tab-body ${name}`, role: "tabpanel", id: `detail-${name}`, "aria-labelledby": `detail-tab-${name}`, tabindex: "0", hidden: true })]));
  let node = null, tab = "story", known = null, before = null, following = null, soon, now = "waiting", write = true;
  const asked = el("div", {});
  const changes = changesView(run, act);
  bodies.changes.append(changes.element);

  tabs.append(...TABS.map(([name, words], at) => el("button", {
    type: "button", role: "tab", class: "quiet", id: `detail-tab-${name}`, "aria-controls": `detail-${name}`,
    onclick: () => turn(name), onkeydown: event => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = TABS[(at + step + TABS.length) % TABS.length][0];
      turn(next);
      document.getElementById(`detail-tab-${next}`).focus();
    },
  }, words)));
  place.setAttribute("aria-labelledby", "detail-title");
  place.append(el("div", { class: "panel-head" }, title, status,
    el("button", { type: "button", class: "quiet close", "aria-label": "Close", onclick: close }, "✕")),
    label, line, doing, asked, actions, el("div", { class: "row between" }, tabs, attempts), ...Object.values(bodies));

  function open(name, state, wanted) {
    if (name === node) {
      if (name && wanted) turn(wanted);
      return;
    }
    if (node === null) before = document.activeElement;
    node = name;
    known = null;
    following?.stop();
    place.hidden = name === null;
    document.body.classList.toggle("with-detail", name !== null);
    if (name === null) {
      (before?.isConnected ? before : document.getElementById("main")).focus();
      return;
    }
    Object.entries(bodies).forEach(([name, body]) => name !== "changes" && body.replaceChildren());
    if (wanted) tab = wanted;
    turn(tab);
    attempts.replaceChildren();
    show(state);
    load();
    title.focus();
  }

  async function load() {
    const asked = node;
    try {
      const found = await get(`runs/${part(run)}/nodes/${part(asked)}`);
      if (asked !== node) return;
      const newer = (known?.attempts ?? []).length !== found.attempts.length;
      known = found;
      pick(newer);
      fillTabs();
      if (newer || ["story", "task", "changes"].includes(tab)) turn(tab);
    } catch (problem) {
      if (asked === node) bodies.story.replaceChildren(empty(problem.message));
      turn("story");
    }
  }

  function pick(newer) {
    keyed(attempts, known.attempts, one => one.attempt, one => el("option", { value: one.attempt }, `Attempt ${one.attempt}`));
    attempts.hidden = known.attempts.length < 2;
    if (newer && known.attempts.length) attempts.value = String(known.attempts.at(-1).attempt);
  }

  function turn(name) {
    tab = name;
    for (const [other] of TABS) {
      const here = other === name;
      bodies[other].hidden = !here;
      const control = document.getElementById(`detail-tab-${other}`);
      set(control, "aria-selected", String(here));
      set(control, "tabindex", here ? "0" : "-1");
    }
    following?.stop();
    following = null;
    place.classList.toggle("wide", name === "changes");
    if (known && name === "changes") changes.load(node, Number(attempts.value || 1), write);
    if (known && name === "log") following = logView(bodies.log, at, `${run}-${node}-${attempts.value || 1}`, live);
    if (known && name === "transcript") following = transcriptView(bodies.transcript, at, `${run}-${node}-${attempts.value || 1}`, live);
  }

  const at = kind => `runs/${part(run)}/nodes/${part(node)}/${kind}?attempt=${attempts.value || 1}`;

  /** Whether more may come: a working agent may print. */
  const live = () => known?.attempts.at(-1)?.attempt === Number(attempts.value) && ["working", "asking"].includes(now);

  function fillTabs() {
    bodies.story.replaceChildren(
      known.review ? part_(`Attempt ${known.review.attempt} (${known.review.commit.slice(0, 10)}) waits for your approval`,
        el("button", { type: "button", onclick: () => turn("changes") }, "See the changes")) : "",
      part_("Attempts", attemptsOf(known.attempts)),
      part_("What happened", known.why?.length ? el("ol", { class: "why" }, known.why.map(line =>
        el("li", {}, el("time", {}, clock(line.at)), el("span", {}, OF[line.about?.split("-")[0]] ?? "", line.text,
          line.rule && !line.text.includes(line.rule) ? el("span", { class: "rule" }, line.rule) : null)))) : empty("Nothing has happened to it yet.")),
      part_("Hook", facts(known.hook)));
    bodies.task.replaceChildren(
      known.prompt ? part_("Prompt", el("pre", { class: "wrap" }, known.prompt)) : "",
      known.command ? part_("Command", el("pre", { class: "wrap" }, known.command)) : "",
      known.acceptance ? part_("Acceptance", el("pre", { class: "wrap" }, known.acceptance)) : "",
      known.prompt || known.command || known.acceptance ? "" : empty("It has neither prompt nor command: it only routes the pipeline."));
  }

  function show(state) {
    const one = node && state?.nodes[node];
    if (!one) return;
    now = shown(state, one);
    say(title, node);
    set(status, "class", `pill s-${now}`);
    say(status, `${signOf(now)} ${nodeWord(one, now)}`);
    say(label, one.label && one.label !== node ? one.label : "");
    const { limits, tokens: used } = state.costs ?? {};
    const work = now === "working" ? one.work : null;
    say(line, work?.line);
    line.hidden = !work?.line;
    say(doing, [one.doing || one.reason, changedSoFar(work), usually(work, one.since), dollarsOf(one.cost, limits?.nodes[node]), tokens(used?.nodes[node])].filter(Boolean).join(" · "));
    write = state.write !== false;
    keyed(actions, write ? possible(one, now, state) : [], what => `${node} ${what.action} ${what.over}`, what => actionButton(what, run, node, act));
    const gate = state.gates.find(each => each.node === node && each.free);
    keyed(asked, write && (gate || one.asks) ? [one] : [], () => `${node} ${gate?.gate ?? one.asks}`, () => answerForm(one, gate, node, act));
  }

  function happened(change) {
    if (node === null || (change.node !== node && !change.patch?.nodes?.[node])) return;
    clearTimeout(soon);
    soon = setTimeout(() => node !== null && load(), SETTLE);
  }

  turn("story");
  return { open, show, happened, opened: () => node !== null };
}

const part_ = (title, ...inside) => el("section", {}, el("h3", {}, title), ...inside);

/** The attempts, the last one first; early ones are folded. */
function attemptsOf(all) {
  if (!all.length) return empty("It has not started yet.");
  const made = all.map((one, at) => attemptOf(one, all[at + 1])).reverse();
  const early = made.splice(ATTEMPTS);
  return [el("ol", { class: "attempts" }, made),
    early.length ? el("details", {}, el("summary", {}, count(early.length, "earlier attempt")), el("ol", { class: "attempts" }, early)) : null];
}

/** One attempt; the `next` one, if there is one, has the reason why it was not good enough. */
function attemptOf(one, next) {
  const lives = one.lives ?? [];
  const state = next?.why_again ? "failed" : stateOf(one.status);
  const reason = next?.why_again || (state === "failed" || !one.why_again ? one.reason : `retry: ${one.why_again}`);
  return el("li", { class: `s-${state}` },
    el("p", {}, el("span", { class: "sign", "aria-hidden": "true" }, signOf(state)), el("strong", {}, ` Attempt ${one.attempt} `),
      el("span", {}, wordOf(state)), one.started ? el("time", {}, ` ${clock(one.started)}${one.ended ? ` – ${clock(one.ended)}` : ""}`) : null),
    reason ? el("p", { class: "reason" }, reason) : null,
    one.tail && one.status === "failed" ? el("pre", { class: "wrap tail" }, one.tail.slice(-TAIL)) : null,
    one.branch ? el("p", { class: "mono" }, [legibleName(one.branch), one.commit?.slice(0, 10)].filter(Boolean).join(" @ ")) : null,
    lives.length ? el("ol", { class: "lives" }, lives.map(life => el("li", {},
      `${life.who} incarnation ${life.incarnation}: ${[clock(life.started), life.ended && `ended ${clock(life.ended)}`, life.how].filter(Boolean).join(", ")}`))) : null);
}

function facts(record) {
  const rows = Object.entries(record ?? {}).filter(([, value]) => value !== null && value !== "" && !(Array.isArray(value) && !value.length));
  if (!rows.length) return empty("No hook yet.");
  return el("dl", { class: "facts" }, rows.map(([name, value]) => el("div", {}, el("dt", {}, name.replaceAll("_", " ")),
    el("dd", {}, worded(value)))));
}

const worded = value => /^\d{4}-\d\d-\d\dT/.test(value) ? clock(value) : typeof value === "object" ? JSON.stringify(value) : String(value);
