// What a person can do about one node: answer, tell, take over, park, unpark, respawn, retry, cancel. What ends or throws
// away something asks first, and names the node and what is lost.

import { part } from "./api.js";
import { ask } from "./ask.js";
import { el } from "./dom.js";
import { stateOf } from "./words.js";

/** The actions that a node in this state allows. */
export function possible(one, now, state) {
  const working = now === "working" || (now === "asking" && stateOf(one.place) === "working");
  const failed = now === "failed" && one.agent;
  const over = state.status === "failed";
  return [
    working && "tell", working && "takeover", now === "parked" && "unpark", failed && "retry",
    working && "park", working && "respawn", working && "cancel",
  ].filter(Boolean).map(action => ({ action, over }));
}

const KEPT = "What it did is saved and stays in its branch.";

/** The button of an action on a node; `act` posts a change. */
export function actionButton({ action, over }, run, node, act) {
  const post = (data, control) => act(`nodes/${part(node)}/actions`, data, control);
  const does = {
    tell: ["Tell", "", async control => {
      const said = await ask({ title: `Tell ${node}`, lines: ["Its session reads it at its next turn and works on; nothing is interrupted."], yes: "Tell", kind: "primary", field: { label: "What it should know", required: true } });
      if (said) await post({ action: "tell", text: said.text }, control);
    }],
    takeover: ["Take over", "", async () => {
      const words = `garrison takeover ${node} --run ${run}`;
      const copied = await ask({ title: `Take over ${node}`, lines: ["Its session becomes yours in a terminal; its agent waits, and goes on when you leave. Run this there:", words], yes: "Copy the command", kind: "primary" });
      if (copied) await navigator.clipboard?.writeText(words).catch(() => {});
    }],
    park: ["Park", "", async control => {
      const why = await ask({ title: `Park ${node}?`, lines: [`Its agent stops, and starts again when you unpark it. ${KEPT}`], yes: "Park", kind: "primary", field: { label: "Reason", value: "" } });
      if (why) await post({ action: "park", text: why.text || "parked from the page" }, control);
    }],
    unpark: ["Unpark", "primary", control => post({ action: "unpark" }, control)],
    respawn: ["Respawn", "", async control => {
      if (await ask({ title: `End the agent of ${node} and start a successor?`, lines: ["The process and what it had in mind are lost; its files stay, and its successor is told what it did."], yes: "Respawn" })) await post({ action: "respawn" }, control);
    }],
    retry: ["Retry", "primary", async control => {
      const lines = [`It gets a new attempt, with the reason of its failure; what waited for it waits again. ${KEPT}`, ...(over ? ["The run has failed and is resumed for it; other failed nodes stay failed."] : [])];
      if (!await ask({ title: `Retry ${node}?`, lines, yes: "Retry", kind: "primary" })) return;
      await (over ? act("actions", { action: "again", nodes: [node] }, control) : post({ action: "retry" }, control));
    }],
    cancel: ["Cancel node", "danger", async control => {
      const why = await ask({ title: `Cancel ${node}?`, lines: [`Its agent ends without another attempt. For the pipeline the node has failed: what depends on it does not start. ${KEPT}`], yes: "Cancel node", field: { label: "Reason" } });
      if (why) await post({ action: "cancel", text: why.text || "from the page" }, control);
    }],
  }[action];
  const [label, kind, doing] = does;
  return el("button", { type: "button", class: kind, onclick: event => doing(event.currentTarget) }, label);
}

/** A form that answers a node's question, in its details. */
export function answerForm(one, gate, node, act) {
  const field = el("input", { type: "text", "aria-label": `Answer to ${node}`, placeholder: "Answer", autocomplete: "off" });
  const send = el("button", { type: "submit", class: "primary" }, "Answer");
  return el("form", { class: "row grow answer", onsubmit: event => {
    event.preventDefault();
    if (!field.value.trim()) return;
    if (gate) act(`gates/${part(gate.gate)}`, { text: field.value }, send);
    else act(`nodes/${part(node)}/actions`, { action: "answer", text: field.value }, send);
  } }, el("p", { class: "question" }, gate?.question ?? one.asks), field, send);
}
