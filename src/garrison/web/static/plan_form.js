// Form of a plan that waits before it starts: its questions, or its tasks as a table and as a graph that can be edited.

import { act } from "./api.js";
import { legibleGraph } from "./legible.js";
import { attempt } from "./notice.js";
import { drawing } from "./svg_filter.js";
import { Tabs, TabPanel } from "./tabs.js";
import { Field, html, useEffect, useRef, useState } from "./view.js";

const LINT_AFTER = 300; // milliseconds without typing
const WIDE = '{ node [margin="0.25,0.1"];'; // the page's font is wider than the one that the layout measures
const PLAN_TABS = [
  ["table", "Table"],
  ["graph", "Graph"],
];

/**
 * A plan that waits: its questions, or its tasks to approve. The next step is a separate start.
 * @param {{plan: import("./records").OfferedPlan, given: object, took: (begun: any) => void, close: () => void}} props
 */
export function Plan({ plan, given, took, close }) {
  const [answers, answer] = useState(plan.questions.map(() => ""));
  const [busy, setBusy] = useState(false);
  const [tab, choose] = useState("table");
  const [dot, edit] = useState(plan.graph);
  const [found, find] = useState({ errors: [], warnings: [] });
  useEffect(() => {
    if (dot === plan.graph) return find({ errors: [], warnings: [] });
    const timer = setTimeout(
      () => act("lint", { text: dot }).then(find, problem => find({ errors: [problem.message], warnings: [] })),
      LINT_AFTER,
    );
    return () => clearTimeout(timer);
  }, [dot]);
  const submit = async event => {
    event.preventDefault();
    if (busy) return;
    setBusy(true);
    const text = dot === plan.graph ? "" : dot;
    const check = event.submitter?.name !== "check";
    const begun = await attempt(() => act("begin", { ...given, kind: "plan", text, check, plan: plan.plan, answers }));
    setBusy(false);
    if (begun) took(begun);
  };
  const most = plan.most_usd === null ? "any amount, since an agent has no budget" : `$${plan.most_usd} at most`;
  const asks = plan.questions.length > 0;
  const isEdited = dot !== plan.graph;
  const words = asks ? "Answer" : isEdited ? "Use this graph" : "Start";
  return html`<form class="plan" onSubmit=${submit}>
    <h2>${asks ? "The planner asks" : "Start these tasks?"}</h2>
    ${plan.questions.map(
      (question, at) =>
        html`<${Field} key=${at} label=${question}>
          <input
            type="text"
            required
            value=${answers[at]}
            onInput=${event => answer(answers.map((one, place) => (place === at ? event.currentTarget.value : one)))}
          />
        <//>`,
    )}
    ${
      !asks &&
      html`<${Tabs} prefix="plan" label="The plan" tabs=${PLAN_TABS} chosen=${tab} choose=${choose} />
        <${TabPanel} prefix="plan" name="graph" chosen=${tab}>
          <${PlanDrawing} dot=${found.errors.length ? plan.graph : dot} />
          <${Field} label="The same as text, which you can edit">
            <textarea
              rows="12"
              spellcheck="false"
              class="dot"
              value=${dot}
              onInput=${event => edit(event.currentTarget.value)}
            />
          <//>
          <div role="status">
            ${found.errors.map(line => html`<p key=${line} class="trouble-line">${line}</p>`)}
            ${found.warnings.map(line => html`<p key=${line}>${line}</p>`)}
          </div>
        <//>
        <${TabPanel} prefix="plan" name="table" chosen=${tab}>
          <table>
            <thead>
              <tr>
                ${["Node", "Task", "After", "Files", "Agent", "Cost", "Time"].map(name => html`<th key=${name}>${name}</th>`)}
              </tr>
            </thead>
            <tbody>
              ${plan.tasks.map(
                task =>
                  html`<tr key=${task.node}>
                    ${[task.node, task.title, task.needs, task.files, task.agent, task.cost, task.time].map(
                      (cell, at) => html`<td key=${at}>${cell}</td>`,
                    )}
                  </tr>`,
              )}
            </tbody>
          </table>
        <//>
        ${plan.notes.map(note => html`<p key=${note} class="trouble-line">${note}</p>`)}
        <p>It may spend ${most}.</p>`
    }
    <div class="row end">
      <button type="button" onClick=${() => close()}>Not now</button>
      ${
        plan.one_task &&
        !isEdited &&
        html`<button type="submit" name="check" value="none" title="As garrison run does it" disabled=${busy}>
          Run without the check
        </button>`
      }
      <button type="submit" class="primary" disabled=${busy || (isEdited && found.errors.length > 0)}>${words}</button>
    </div>
  </form>`;
}

/**
 * The graph of a plan, laid out again after each edit; the last drawing stays until then.
 * @param {{dot: string}} props
 */
function PlanDrawing({ dot }) {
  const place = useRef(/** @type {HTMLElement|null} */ (null));
  const worker = useRef(/** @type {Worker|null} */ (null));
  useEffect(() => {
    worker.current = new Worker("/static/graph_worker.js", { type: "module" });
    worker.current.addEventListener("message", ({ data }) => {
      if (data.problem) return;
      const drawn = drawing(data.down);
      drawn.svg.setAttribute("role", "img");
      drawn.svg.setAttribute("aria-label", "Graph of the plan");
      drawn.svg.style.maxWidth = `${drawn.width}pt`;
      place.current?.replaceChildren(drawn.svg);
    });
    return () => worker.current?.terminate();
  }, []);
  useEffect(
    () => worker.current?.postMessage({ id: 1, dot: legibleGraph(dot).replace("{", WIDE), both: false }),
    [dot],
  );
  return html`<div class="plan-graph" ref=${place}></div>`;
}
