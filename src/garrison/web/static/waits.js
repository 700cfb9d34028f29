// Panel of items that wait for the user, most urgent first: questions with their answers, then parked and failed nodes.

import { part } from "./api.js";
import { ask } from "./ask.js";
import { useBusy } from "./controls.js";
import { Decision } from "./decision.js";
import { answer, NodeAction, TextForm } from "./node_actions.js";
import { notes, waiting } from "./state.js";
import { Age } from "./time.js";
import { Empty, html, Panel, reading, Skeleton } from "./view.js";
import { count, millis, span } from "./words.js";

const TITLES = { run: "Run", gate: "Question", asks: "Question", parked: "Parked", failed: "Failed" };
const SIGNS = { run: "!", gate: "?", asks: "?", parked: "‖", failed: "✕" };

/**
 * The panel.
 * @param {Object} props
 * @param {import("./state").State|null} props.state null: not known yet
 * @param {Array<Object>} props.elsewhere other runs in which something waits
 * @param {(a: string, b?: string) => void} props.choose opens a node, at a tab
 * @param {(...given: any[]) => any} props.act posts a change
 */
export const Waits = reading(
  ["nodes", "gates", "waits", "hint", "problems", "status", "write", "next"],
  ({ state, elsewhere, choose, act }) => {
    const waits = state && waiting(state);
    const all = state && [...waits, ...notes(state)];
    return html`<${Panel}
      id="waits"
      title="Waits for you"
      class=${waits?.length ? "some" : ""}
      beside=${html`<span class="number">${waits?.length || ""}</span>`}
    >
      ${!all ? html`<${Skeleton} />` : !all.length && html`<${Empty}>Nothing is waiting for you.<//>`}
      <ul class="cards">
        ${all?.map(
          one =>
            html`<${Card}
              key=${one.key}
              one=${one}
              run=${state.run}
              write=${state.write !== false}
              over=${state.status === "failed"}
              choose=${choose}
              act=${act}
            />`,
        )}
      </ul>
      <ul class="elsewhere">
        ${elsewhere.map(
          one =>
            html`<li key=${one.run}>
              <a href="/?run=${part(one.run)}">${one.run}</a> has ${count(one.gates, "item")} waiting for you
            </li>`,
        )}
      </ul><//
    >`;
  },
);

/** A card of a waiting item with its answers; `write`: changes are allowed, `over`: the run failed, `beside`: more in its head. */
export function Card({ one, run, write, over, choose, act, beside }) {
  const name = one.node?.node ?? one.gate?.node;
  return html`<li class="card w-${one.kind}" data-key=${one.key} tabindex="-1">
    <div class="card-head">
      <span class="sign" aria-hidden="true">${SIGNS[one.kind]}</span
      ><span class="kind">${one.gate?.kind === "review" ? "Approval" : TITLES[one.kind]}</span>
      ${name && html`<button type="button" class="link-like name" onClick=${() => choose(name)}>${name}</button>`}<${Age}
        time=${one.since || one.node?.since}
      />${beside}
    </div>
    <p class="question">${question(one)}</p>
    ${one.kind === "gate" && one.gate.kind !== "signal" && html`<${Decision} run=${run} question=${one.gate.gate} />`}
    ${
      write &&
      name &&
      html`<div class="row answers">
        <${Answers} one=${one} name=${name} run=${run} over=${over} choose=${choose} act=${act} />
      </div>`
    }
  </li>`;
}

function question({ kind, text, gate: asked, node }) {
  if (kind === "run" || (kind === "parked" && text)) return text;
  if (asked) return asked.question + until(asked);
  const why = (typeof node.asks === "string" && node.asks) || node.reason || node.doing || "";
  return kind === "asks" ? why : why.split("\n")[0]; // which ends with the last line of an output; "See why" has all
}

function until({ deadline, default: chosen }) {
  const left = deadline ? (millis(deadline) - Date.now()) / 1000 : 0;
  return left > 0 ? ` (${chosen ? "default" : "asked again"} in ${span(left)}${chosen ? `: ${chosen}` : ""})` : "";
}

function Answers({ one, name, run, over, choose, act }) {
  const details = html`<button key="why" type="button" onClick=${() => choose(name, "story")}>See why</button>`;
  if (one.kind === "parked")
    return html`<${NodeAction} action="unpark" run=${run} node=${name} act=${act} />${details}`;
  if (one.kind === "failed")
    return html`${one.node.agent && html`<${NodeAction} action="retry" run=${run} node=${name} over=${over} act=${act} />`}${details}`;
  const { choices = [], free } = one.gate ?? {};
  const send = text => answer(act, name, one.gate, text);
  if (!choices.length || free) return html`<${TextForm} label="Answer" hint="Answer to ${name}" send=${send} />`;
  return html`<${Choices} question=${one.gate} name=${name} choose=${choose} act=${act} send=${send} />`;
}

/** The answers to a question. The first click on one locks all until its result is known. */
function Choices({ question: asked, name, choose, act, send }) {
  const review = asked.kind === "review";
  const [busy, run] = useBusy(
    async ({ label, irreversible }) =>
      (await agreed(name, asked, label, irreversible)) &&
      act(`gates/${part(asked.gate)}`, { choice: label, ...(irreversible ? { confirmed: true } : {}) }),
  );
  const see = html`<button key="changes" type="button" onClick=${() => choose(name, "changes")}>See changes</button>`;
  return html`${review && see}
  ${asked.choices.map(
    (choice, at) =>
      html`<button
        key="choice ${choice.label}"
        type="button"
        class="choice ${choice.irreversible ? "danger" : at === 0 && "primary"}"
        disabled=${busy}
        onClick=${() => run(choice)}
      >
        ${choice.label}${choice.irreversible && "…"}
      </button>`,
  )}
  ${review && html`<${TextForm} key="reject" label="Reject" hint="Reason for its next attempt" kind="" send=${send} />`}`;
}

/** Whether the user confirms an answer: asked where work lands, or where it cannot be undone. */
async function agreed(name, asked, label, irreversible) {
  if (asked.kind === "review") return landing(name, asked);
  if (!irreversible) return true;
  return ask({
    title: `${label}?`,
    yes: label,
    no: "Back", // "Not now" may well be another answer
    kind: "danger",
    lines: [asked.question, `This cannot be undone once ${name} has continued.`],
  });
}

const landing = (name, asked) =>
  ask({
    title: `Approve the work of ${name}?`,
    yes: "Approve",
    kind: "primary",
    lines: [asked.question, "It lands once it has passed the gate. The changes show what it is."],
  });
