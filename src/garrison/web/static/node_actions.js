// Actions of the user on one node: answer, tell, take over, park, unpark, respawn, retry, cancel. An action that ends or
// discards something asks first, and names the node and what is lost.

import { part } from "./api.js";
import { ask } from "./ask.js";
import { editNode } from "./begin.js";
import { Act, useBusy } from "./controls.js";
import { html, useRef, useState } from "./view.js";
import { stateOf } from "./words.js";

/** The actions that a node in this state allows. */
export function possible(one, now) {
  const working = now === "working" || (now === "asking" && stateOf(one.place) === "working");
  const hears = working && one.agent !== "command"; // a command has no session
  const failed = now === "failed" && one.agent;
  return [
    hears && "tell",
    hears && "takeover",
    now === "waiting" && one.agent && one.agent !== "command" && "edit",
    now === "parked" && "unpark",
    failed && "retry",
    ...(working ? ["preview", "park", "respawn", "cancel"] : []),
  ].filter(Boolean);
}

const KEPT = "What it did is saved and stays in its branch.";

const ACTIONS = {
  edit: ["Change", "", ({ node, run }) => editNode(run, node)],
  // action → its words, the class of its button, and what it does: it gets the node, its run, and what posts
  tell: [
    "Tell",
    "",
    async ({ node, post }) => {
      const said = await ask({
        title: `Tell ${node}`,
        lines: ["Its session reads it at its next turn and continues; nothing is interrupted."],
        yes: "Tell",
        kind: "primary",
        field: { label: "What it should know", required: true },
      });
      if (said) await post({ action: "tell", text: said.text });
    },
  ],
  takeover: [
    "Take over",
    "",
    async ({ node, run }) => {
      const words = `garrison takeover ${node} --run ${run}`;
      const copied = await ask({
        title: `Take over ${node}`,
        lines: [
          "Its session becomes yours in a terminal; its agent waits, and continues when you leave. Run this there:",
          words,
        ],
        yes: "Copy the command",
        kind: "primary",
      });
      if (copied) await navigator.clipboard?.writeText(words).catch(() => {});
    },
  ],
  preview: [
    "Preview",
    "",
    async ({ node, post, show }) => {
      const port = await ask({
        title: `Preview ${node}`,
        lines: ["Its server gets its own address, on the machine that serves this page."],
        yes: "Preview",
        kind: "primary",
        field: { label: "Port (empty: its only one)", value: "" },
      });
      const done = port && (await post({ action: "preview", text: port.text }));
      if (done?.message) show(done.message);
    },
  ],
  park: [
    "Park",
    "",
    async ({ node, post }) => {
      const why = await ask({
        title: `Park ${node}?`,
        lines: [`Its agent stops, and starts again when you unpark it. ${KEPT}`],
        yes: "Park",
        kind: "primary",
        field: { label: "Reason", value: "" },
      });
      if (why) await post({ action: "park", text: why.text || "parked from the page" });
    },
  ],
  unpark: ["Unpark", "primary", ({ post }) => post({ action: "unpark" })],
  respawn: [
    "Respawn",
    "",
    async ({ node, post }) => {
      if (
        await ask({
          title: `End the agent of ${node} and start a successor?`,
          lines: ["The process and its context are lost; its files stay, and its successor learns what it did."],
          yes: "Respawn",
        })
      )
        await post({ action: "respawn" });
    },
  ],
  retry: [
    "Retry",
    "primary",
    async ({ node, over, post, act }) => {
      const lines = [
        `It gets a new attempt, with the reason of its failure; what waited for it waits again. ${KEPT}`,
        ...(over ? ["The run has failed and is resumed for it; other failed nodes stay failed."] : []),
      ];
      if (!(await ask({ title: `Retry ${node}?`, lines, yes: "Retry", kind: "primary" }))) return;
      await (over ? act("actions", { action: "again", nodes: [node] }) : post({ action: "retry" }));
    },
  ],
  cancel: [
    "Cancel node",
    "danger",
    async ({ node, post }) => {
      const why = await ask({
        title: `Cancel ${node}?`,
        lines: [
          `Its agent ends without another attempt. For the pipeline the node has failed: what depends on it does not start. ${KEPT}`,
        ],
        yes: "Cancel node",
        field: { label: "Reason" },
      });
      if (why) await post({ action: "cancel", text: why.text || "from the page" });
    },
  ],
};

/** The button of an action on a node; `act` posts a change, `over`: the run has ended. */
export function NodeAction({ action, run, node, over, act }) {
  const [label, kind, does] = ACTIONS[action];
  const [shown, show] = useState("");
  const post = data => act(`nodes/${part(node)}/actions`, data);
  const link = shown && html`<a href=${shown} data-preview>${shown}</a>`;
  return html`<${Act} class=${kind} does=${() => does({ node, run, over, post, act, show })}>${label}<//>${link}`;
}

/** A form with one line of text. `send` gets it and resolves to whether it was accepted. */
export function TextForm({
  label,
  hint,
  placeholder = hint,
  kind = "primary",
  class: look = "row grow",
  send,
  children,
}) {
  const field = useRef(null);
  const [busy, run] = useBusy(send);
  const submit = event => {
    event.preventDefault();
    const text = field.current.value;
    if (text.trim() && !busy) run(text);
  };
  return html`<form class=${look} onSubmit=${submit}>
    ${children}
    <input type="text" ref=${field} aria-label=${hint} placeholder=${placeholder} autocomplete="off" required />
    <button type="submit" class=${kind} disabled=${busy}>${label}</button>
  </form>`;
}

/** Send an answer to the question that a node, or its agent, asks. */
export const answer = (act, node, question, text) =>
  question
    ? act(`gates/${part(question.gate)}`, { text })
    : act(`nodes/${part(node)}/actions`, { action: "answer", text });
