// Panel of what waits for a person, most urgent first: gates and questions with their answers, then parked and failed nodes.

import { part } from "./api.js";
import { ask } from "./ask.js";
import { decisionOf } from "./changes.js";
import { el, empty, keyed, panel, say } from "./dom.js";
import { actionButton } from "./node_actions.js";
import { notes } from "./state.js";
import { reset, since } from "./time.js";
import { count, millis, span } from "./words.js";

const TITLES = { run: "Run", gate: "Gate", asks: "Question", parked: "Parked", failed: "Failed" };
const SIGNS = { run: "!", gate: "?", asks: "?", parked: "‖", failed: "✕" };

/** The panel; `choose` opens a node, `act` posts a change. */
export function waitsPanel(choose, act) {
  const number = el("span", { class: "number" });
  const { section, body } = panel("waits", "Waits for you", number);
  const list = el("ul", { class: "cards" });
  const nothing = empty("Nothing is waiting for you.");
  const others = el("ul", { class: "elsewhere" });
  const { card, renew } = waitCards(choose, act);
  body.append(nothing, list, others);

  /** List other runs in which something waits. */
  function elsewhere(runs) {
    keyed(others, runs, one => one.run, one => el("li", {}, el("a", { href: `/?run=${part(one.run)}` }, one.run), el("span", {})),
      (item, one) => say(item.lastChild, ` has ${count(one.gates, "item")} waiting for you`));
  }

  function show(state, waits) {
    say(number, waits.length || "");
    section.classList.toggle("some", waits.length > 0);
    const all = [...waits, ...notes(state)];
    nothing.hidden = all.length > 0;
    keyed(list, all, one => `${one.key} ${state.write} ${state.status === "failed"}`, one => card(one, state), renew);
  }

  return { section, show, elsewhere };
}

/**
 * Cards of what waits in one run, with the buttons that answer it.
 * @param {function(string)} choose opens a node
 * @param {function(string, Object, Element)} act posts a change below the run's address
 * @returns {{card: function(Object, {run: string, write: boolean}): Element, renew: function(Element, Object)}}
 */
export function waitCards(choose, act) {
  function card(one, state) {
    const write = state.write !== false;
    const name = one.node?.node ?? one.gate?.node;
    const said = el("p", { class: "question" });
    const made = el("li", { class: `card w-${one.kind}` },
      el("div", { class: "card-head" },
        el("span", { class: "sign", "aria-hidden": "true" }, SIGNS[one.kind]), el("span", { class: "kind" }, TITLES[one.kind]),
        name ? el("button", { type: "button", class: "link-like name", onclick: () => choose(name) }, name) : null,
        since(one.node?.since)),
      said, one.kind === "gate" && one.gate.kind !== "signal" ? decisionOf(state.run, one.gate.gate) : null, write && name ? el("div", { class: "row answers" }, answers(one, name, state)) : null);
    return made;
  }

  function answers(one, name, state) {
    const at = `nodes/${part(name)}/actions`;
    const does = (label, data, kind = "") => el("button", {
      type: "button", class: kind, onclick: event => act(at, data, event.currentTarget),
    }, label);
    if (one.kind === "parked") return [does("Unpark", { action: "unpark" }, "primary"), details(name)];
    if (one.kind === "failed") return [...(one.node.agent ? [actionButton({ action: "retry", over: state.status === "failed" }, state.run, name, act)] : []), details(name)];
    const choices = one.gate?.choices ?? [];
    if (!choices.length || one.gate.free) return form(one, name);
    const review = one.gate.kind === "review";
    const buttons = choices.map((choice, at) => el("button", {
      type: "button", class: at === 0 ? "primary" : "", onclick: async event => {
        const control = event.currentTarget;
        if (!review || await landing(name, one.gate)) await act(`gates/${part(one.gate.gate)}`, { choice: choice.label }, control);
      },
    }, choice.label));
    return review ? [changes(name), ...buttons, form(one, name, "Reject", "Reason for its next attempt")] : buttons;
  }

  const landing = (name, gate) => ask({ title: `Approve the work of ${name}?`, yes: "Approve", kind: "primary",
    lines: [gate.question, "It lands once it has passed the gate. The changes show what it is."] });

  const changes = name => el("button", { type: "button", onclick: () => choose(name, "changes") }, "See changes");

  const details = name => el("button", { type: "button", onclick: () => choose(name) }, "See why");

  function form(one, name, label = "Answer", hint = `Answer to ${name}`) {
    const field = el("input", { type: "text", "aria-label": hint, placeholder: hint, autocomplete: "off", required: true });
    const send = el("button", { type: "submit", class: label === "Answer" ? "primary" : "" }, label);
    const sent = () => one.gate ? act(`gates/${part(one.gate.gate)}`, { text: field.value }, send)
      : act(`nodes/${part(name)}/actions`, { action: "answer", text: field.value }, send);
    return el("form", { class: "row grow", onsubmit: event => { event.preventDefault(); if (field.value.trim()) sent(); } }, field, send);
  }

  function renew(element, one) {
    say(element.querySelector(".question"), one.kind === "run" ? one.text : one.gate ? one.gate.question + until(one.gate) : asked(one.node));
    reset(element.querySelector("time"), one.node?.since);
  }

  const asked = node => typeof node.asks === "string" && node.asks || node.reason || node.doing || "";

  const until = gate => {
    const left = gate.deadline ? (millis(gate.deadline) - Date.now()) / 1000 : 0;
    return left > 0 ? ` (default in ${span(left)}${gate.default ? `: ${gate.default}` : ""})` : "";
  };

  return { card, renew };
}
