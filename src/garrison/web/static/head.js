// Head of the page: the run, its status, its progress, and the actions on it.

import { ask } from "./ask.js";
import { addTask, runAgain } from "./begin.js";
import { Act } from "./controls.js";
import { confirmed } from "./dialog.js";
import { runWord, tally } from "./state.js";
import { Age } from "./time.js";
import { html, reading } from "./view.js";
import { dollarsOf, signOf, stateOf, wordOf } from "./words.js";

const ORDER = [
  "landed",
  "unchanged",
  "kept",
  "landing",
  "working",
  "asking",
  "parked",
  "stopped",
  "failed",
  "skipped",
  "waiting",
];
const RUNNING = new Set(["running", "new", "starting", "waiting"]);
const LOOKS = { "waiting for you": "asking", "nothing at work": "waiting" };

/**
 * The head of `run`.
 * @param {Object} props
 * @param {import("./state").State|null} props.state null: not known yet
 * @param {number} props.waits how many items wait for the user
 * @param {Array<Object>|null} props.runs all runs of the home
 * @param {(...given: any[]) => any} props.act posts a change
 */
export const RunHead = reading(
  ["status", "nodes", "gates", "waits", "next", "goal", "title", "costs", "write"],
  ({ run, state, waits, runs, act }) =>
    !state
      ? html`<div class="run-id"><${Picker} run=${run} runs=${runs} /></div>
          <p class="goal">${"\u00a0"}</p>
          <div class="row run-actions unseen"><button type="button" disabled>Stop</button></div>`
      : html` <div class="run-id">
            <${Picker} run=${run} runs=${runs} /><${Status} state=${state} waits=${waits} />
            ${state.write === false && html`<span class="pill" title="The token of this address allows no changes">read only</span>`}
          </div>
          <div class="progress">
            <${Progress} state=${state} /><span class="cost"
              >${state.costs?.windows || dollarsOf(state.costs?.usd, state.costs?.limits?.run)}</span
            ><span class="onto"
              >${state.target && `onto ${state.target}, `}<${Age} time=${state.created} before="started " after=" ago"
            /></span>
          </div>
          <p class="goal" title=${state.goal || null}>${state.goal || state.title}</p>
          <div class="row run-actions">
            ${state.write !== false && html`<${Actions} state=${state} act=${act} />`}
          </div>`,
);

/** The runs, each with its status; the one that is chosen opens. */
function Picker({ run, runs }) {
  const known = runs?.some(one => one.run === run) ? runs : [{ run }, ...(runs ?? [])];
  const words = one =>
    [one.status && signOf(one.gates ? "asking" : one.status), [one.run, one.pipeline].filter(Boolean).join(" · ")]
      .filter(Boolean)
      .join(" ");
  return html`<select
    aria-label="Run"
    onChange=${event => {
      location.href = `/?run=${encodeURIComponent(event.currentTarget.value)}`;
    }}
  >
    ${known.map(one => html`<option key=${one.run} value=${one.run} selected=${one.run === run}>${words(one)}</option>`)}
  </select>`;
}

function Status({ state, waits }) {
  const word = runWord(state, waits);
  const now = LOOKS[word] ?? stateOf(word);
  return html`<span class="pill s-${now}">${signOf(now)} ${word}</span>`;
}

function Progress({ state }) {
  const found = tally(state);
  const all = Object.values(found).reduce((sum, n) => sum + n, 0);
  return html`<div
      class="bar"
      role="img"
      aria-label=${ORDER.filter(name => found[name])
        .map(name => `${found[name]} ${wordOf(name)}`)
        .join(", ")}
    >
      ${ORDER.map(name => {
        const share = { flexGrow: String(found[name] ?? 0) };
        return html`<span key=${name} class="s-${name}" hidden=${!found[name]} style=${share} />`;
      })}
    </div>
    <span class="far">${found.landed ?? 0} of ${all}</span>`;
}

function Actions({ state, act }) {
  const running = RUNNING.has(state.status);
  const resume = html`<${Act}
    key="resume"
    class="primary"
    data-action="resume"
    does=${() => act("actions", { action: "resume" })}
    >Resume<//
  >`;
  const stop = async () =>
    (await confirmed("Stop this run gracefully? Work under way is kept; Resume continues it.", "Stop")) &&
    act("actions", { action: "stop" });
  const nodes = Object.values(state.nodes).filter(one => one.agent);
  return html` ${running && html`<${Act} key="stop" data-action="stop" does=${stop}>Stop<//>`}
  ${
    running &&
    html`<${Act}
      key="add"
      does=${() =>
        addTask(
          state.run,
          nodes.map(one => one.node),
        )}
      >Add task<//
    >`
  }
  ${!running && html`<${Act} key="repeat" does=${() => runAgain(state.run)}>Run again<//>`}
  ${!running && !["done", "failed"].includes(state.status) && resume}
  ${
    state.status === "failed" &&
    html`<${Act} key="again" class="primary" data-action="again" does=${() => again(state, act)}>Retry failed<//>`
  }`;
}

/** Retry the failed nodes that the user chooses. */
async function again(state, act) {
  const failed = Object.values(state.nodes).filter(node => node.agent && node.status === "failed");
  const options = failed.map(one => ({
    value: one.node,
    label: [one.node, one.reason?.split("\n")[0]].filter(Boolean).join(": "),
  }));
  const answer = await ask({
    title: "Retry the failed nodes of this run?",
    lines: ["Each gets a new attempt, with the reason of its failure. Those that you do not choose stay failed."],
    yes: "Retry",
    kind: "primary",
    options: options.length > 1 ? options : undefined,
  });
  if (!answer) return;
  const some = options.length > 1 && answer.chosen.length < options.length;
  await act("actions", { action: "again", ...(some && { nodes: answer.chosen }) });
}
