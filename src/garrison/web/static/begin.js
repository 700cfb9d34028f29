// Start work: a task, a list of tasks or an issue as a run, a run again, a task of an active run; and change a
// node that has not started. Each is a command of the terminal, which is shown with its result.

import { act, get, part } from "./api.js";
import { openDialog } from "./dialog.js";
import { attempt, toast } from "./notice.js";
import { Plan } from "./plan_form.js";
import { Field, html, Skeleton, useEffect, useState } from "./view.js";

const LOOK_EVERY = 700; // milliseconds
const NOTHING = {
  kind: "task",
  repo: "",
  text: "",
  agent: "",
  command: "",
  gate: "",
  acceptance: "",
  budget: "",
  approve: false,
};
const KINDS = [
  ["task", "One task", "The task in words"],
  ["tasks", "A list of tasks", "One task a line, or a Markdown list; `(after 2)` at its end makes a task wait"],
  ["goal", "A goal", "The goal in words; it is split into tasks, which start once you approve them"],
  ["issue", "An issue", "Number of the forge's issue; its run ends with a pull request"],
];

/** Ask what to start, start it, and open its run. */
export const beginTask = () => openDialog({ class: "begin", "aria-label": "Start a run" }, Begin);

/**
 * Show a plan that waits, to continue it.
 * @param {import("./records").ListedPlan} plan
 */
export async function continuePlan(plan) {
  const given = { kind: "plan", repo: plan.repo };
  const begun = await attempt(() => act("begin", { ...given, plan: plan.id, look: true }));
  if (begun) await openDialog({ class: "begin", "aria-label": `Plan ${plan.id}` }, Progress, { begun, given });
}

/** Launch the graph of a run again. */
export async function runAgain(run) {
  const begun = await attempt(() => act(`runs/${part(run)}/again`, {}));
  if (begun) await openDialog({ class: "begin", "aria-label": `Run ${run} again` }, Progress, { begun });
}

/** Ask for another task of an active run. */
export async function addTask(run, nodes) {
  const given = await openDialog({ class: "begin", "aria-label": `Add a task to ${run}` }, TaskForm, {
    title: `Add a task to ${run}`,
    yes: "Add",
    nodes,
  });
  if (given) await told(() => act(`runs/${part(run)}/tasks`, given));
}

/** Ask for another task, agent or budget of a node that has not started. */
export async function editNode(run, node) {
  const known = await attempt(() => get(`runs/${part(run)}/nodes/${part(node)}`));
  if (!known) return;
  const given = await openDialog({ class: "begin", "aria-label": `Change ${node}` }, TaskForm, {
    title: `Change ${node}, which has not started`,
    yes: "Change",
    text: known.prompt ?? "",
    agent: known.agent ?? "",
  });
  if (given) await told(() => act(`runs/${part(run)}/nodes/${part(node)}/edit`, given));
}

/** Do it, and show the result with the equivalent command of a terminal. */
async function told(doing) {
  const done = await attempt(doing);
  if (done) toast(`${done.message} — ${done.command}`);
}

/** What can be started here; null until the server has answered. */
function useOffer() {
  const [offer, take] = useState(/** @type {import("./records").StartOffer|null} */ (null));
  const [trouble, fail] = useState("");
  useEffect(() => {
    const ready = found => {
      take(found);
      requestAnimationFrame(() =>
        /** @type {HTMLElement|null} */ (document.querySelector("dialog [autofocus]"))?.focus(),
      );
    };
    get("begin").then(ready, problem => fail(problem.message));
  }, []);
  return { offer, trouble };
}

function Agents({ offer, chosen, choose, standard }) {
  return html`<select value=${chosen} onChange=${event => choose(event.currentTarget.value)}>
    <option value="">${standard}</option>
    ${offer?.agents.map(name => html`<option key=${name} value=${name}>${name}</option>`)}
  </select>`;
}

const Budget = ({ value, write, none = "no limit" }) =>
  html`<input
    type="text"
    inputmode="decimal"
    value=${value}
    placeholder=${none}
    onInput=${event => write(event.currentTarget.value)}
  />`;

/** The form of a new run. */
function Begin({ close }) {
  const { offer, trouble } = useOffer();
  const [begun, took] = useState(null);
  const [given, give] = useState(NOTHING);
  const [busy, setBusy] = useState(false);
  if (begun) return html`<${Progress} begun=${begun} given=${given} back=${() => took(null)} close=${close} />`;
  if (trouble) return html`<p>${trouble}</p>`;
  if (!offer) return html`<${Skeleton} />`;
  const place = offer.places.find(one => one.repo === given.repo) ?? offer.places[0];
  if (!place)
    return html`<h2>No repository yet</h2>
      <p>Start garrison serve in a repository, or start its first run in a terminal: garrison run "…"</p>`;
  const set = (name, value) => give({ ...given, [name]: value });
  const written = name => event => set(name, event.currentTarget.value);
  const submit = async event => {
    event.preventDefault();
    if (busy || !given.text.trim()) return;
    setBusy(true);
    const answer = await attempt(() => act("begin", { ...given, repo: place.repo }));
    give({ ...given, repo: place.repo });
    setBusy(false);
    if (answer) took(answer);
  };
  const [, , hint] = KINDS.find(([kind]) => kind === given.kind);
  return html`<form onSubmit=${submit}>
    <h2>Start a run</h2>
    <div class="row kinds" role="radiogroup" aria-label="What to start">
      ${KINDS.map(
        ([kind, label]) =>
          html`<label key=${kind}
            ><input type="radio" name="kind" checked=${kind === given.kind} onChange=${() => set("kind", kind)} />
            ${label}</label
          >`,
      )}
    </div>
    <${Field} label="Repository">
      <select value=${place.repo} onChange=${written("repo")}>
        ${offer.places.map(one => html`<option key=${one.repo} value=${one.repo}>${one.repo}</option>`)}
      </select>
    <//>
    ${place.problem && html`<p class="trouble-line">${place.problem}</p>`}
    <${Field} label=${hint}>
      ${
        given.kind === "issue"
          ? html`<input type="text" inputmode="numeric" value=${given.text} onInput=${written("text")} required />`
          : html`<textarea rows="6" autofocus value=${given.text} onInput=${written("text")} required />`
      }
    <//>
    <div class="fields">
      <${Field} label="Agent">
        <${Agents}
          offer=${offer}
          chosen=${given.agent}
          choose=${name => set("agent", name)}
          standard=${place.agent ? `${place.agent} (as configured)` : "choose one"}
        />
      <//>
      ${
        given.kind === "task" &&
        html`<${Field} label="Budget in US dollars">
          <${Budget} value=${given.budget} write=${value => set("budget", value)} />
        <//>`
      }
      ${
        given.kind === "task" &&
        html`<${Field} label="Command that does it, in place of an agent">
          <input type="text" value=${given.command} placeholder="none" onInput=${written("command")} />
        <//>`
      }
      <${Field} label="Gate: the command that tests what lands">
        <input
          type="text"
          value=${given.gate}
          placeholder=${place.gate || "as configured"}
          onInput=${written("gate")}
        />
      <//>
      ${
        given.kind === "task" &&
        html`<${Field} label="Acceptance: a command that judges the work first">
          <input type="text" value=${given.acceptance} placeholder="none" onInput=${written("acceptance")} />
        <//>`
      }
    </div>
    <label class="check"
      ><input
        type="checkbox"
        checked=${given.approve}
        onChange=${event => set("approve", event.currentTarget.checked)}
      />
      Nothing lands before I approve it</label
    >
    <div class="row end">
      <button type="button" onClick=${() => close()}>Not now</button>
      <button type="submit" class="primary" disabled=${busy || Boolean(place.problem)}>Start</button>
    </div>
  </form>`;
}

/**
 * Progress of a start, with its command; its run is opened once it exists. `back` leads to the form, as it was filled in.
 * @param {{begun: import("./records").Beginning, given?: object, back?: () => void, close: () => void}} props
 */
function Progress({ begun, given = {}, back, close }) {
  const [now, look] = useState(begun);
  useEffect(() => {
    if (now.run) location.href = `/?run=${part(now.run)}`;
    if (now.run || now.problem || now.plan) return;
    const timer = setTimeout(
      () => get(`begin/${now.id}`).then(look, problem => look({ ...now, problem: problem.message })),
      LOOK_EVERY,
    );
    return () => clearTimeout(timer);
  }, [now]);
  if (now.plan) return html`<${Plan} key=${now.id} plan=${now.plan} given=${given} took=${look} close=${close} />`;
  return html`<h2>${now.problem ? "Nothing was started" : now.run ? `Run ${now.run}` : "Starting…"}</h2>
    <p>The same in a terminal:</p>
    <pre class="wrap">${now.command}</pre>
    <p role="status" class=${now.problem ? "trouble-line" : ""}>${now.problem || now.line || "…"}</p>
    <div class="row end">
      <button type="button" onClick=${() => close()}>Close</button>
      ${now.problem && back && html`<button type="button" class="primary" onClick=${back}>Change it</button>`}
    </div>`;
}

/** The form of a task of an active run: a new one, or one that has not started. */
function TaskForm({ title, yes, text = "", agent = "", nodes = null, close }) {
  const { offer } = useOffer();
  const [given, give] = useState({ text, agent: "", budget: "", after: "" });
  const set = (name, value) => give({ ...given, [name]: value });
  const submit = event => {
    event.preventDefault();
    const changed = given.text === text ? { ...given, text: "" } : given;
    if (changed.text.trim() || changed.agent || changed.budget) close(nodes ? given : changed);
  };
  return html`<form onSubmit=${submit}>
    <h2>${title}</h2>
    <${Field} label="The task in words">
      <textarea rows="6" autofocus value=${given.text} onInput=${event => set("text", event.currentTarget.value)} />
    <//>
    <div class="fields">
      <${Field} label="Agent">
        <${Agents}
          offer=${offer}
          chosen=${given.agent}
          choose=${name => set("agent", name)}
          standard=${agent ? `${agent} (as it is)` : "as for its run"}
        />
      <//>
      <${Field} label="Budget in US dollars"
        ><${Budget}
          value=${given.budget}
          write=${value => set("budget", value)}
          none=${nodes ? "no limit" : "as it is"}
      /><//>
      ${
        nodes &&
        html`<${Field} label="Starts">
          <select value=${given.after} onChange=${event => set("after", event.currentTarget.value)}>
            <option value="">at once</option>
            ${nodes.map(name => html`<option key=${name} value=${name}>after ${name}</option>`)}
          </select>
        <//>`
      }
    </div>
    <div class="row end">
      <button type="button" onClick=${() => close()}>Not now</button>
      <button type="submit" class="primary">${yes}</button>
    </div>
  </form>`;
}
