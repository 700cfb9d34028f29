// Panel of the crew: the agents and the other layers of the run, which of them work now, and their progress. What its
// processes use of the machine is in its own tab.

import { shown, tally } from "./state.js";
import { Tabs, TabPanel } from "./tabs.js";
import { Age } from "./time.js";
import { Empty, html, memo, Panel, reading, Skeleton, useState } from "./view.js";
import { changedSoFar, nodeWord, signOf, span, stateOf, usually } from "./words.js";

const KINDS = {
  launch: "Launcher",
  launcher: "Launcher",
  guardian: "Guardian",
  runner: "Runner",
  orchestrator: "Agent",
  processor: "Merge processor",
};
const LEAD = ["launcher", "launch", "guardian", "processor"];
const TABS = [
  ["crew", "Agents"],
  ["machine", "Machine"],
];

/** The panel; `choose` opens a node. */
export const Rail = reading(["nodes", "layers", "gates", "queue", "status", "next"], ({ state, choose }) => {
  const [tab, turn] = useState("crew");
  const rows = state && rowsOf(state);
  return html`<${Panel}
    id="rail"
    title="Crew"
    beside=${html`<span class="number">${rows?.filter(row => row.active).length || ""}</span>
      <${Tabs} prefix="rail" label="About the crew" tabs=${TABS} chosen=${tab} choose=${turn} />`}
  >
    <${TabPanel} prefix="rail" name="crew" chosen=${tab}>
      <ul class="agents" data-testid="agent-rail">
        ${rows?.map(row => html`<${Member} key=${row.who} ...${row} choose=${choose} />`)}
      </ul>
      ${!rows ? html`<${Skeleton} />` : !rows.length && html`<${Empty}>No process of this run is alive.<//>`}<//
    >
    <${TabPanel} prefix="rail" name="machine" chosen=${tab} tabindex="0">
      ${
        state &&
        tab === "machine" &&
        html`<ul class="machine">
          ${state.layers.filter(layer => layer.living).map(layer => html`<${Process} key=${layer.who} layer=${layer} />`)}
        </ul>`
      }<//
    >
  <//>`;
});

const Member = memo(
  ({ who, node, state, active, title, kind, since, line, doing, far, farTitle, choose }) =>
    html` <li
      class="agent s-${state}${active ? " active" : ""}"
      data-testid="agent-${who}"
      data-agent=${who}
      data-key=${who}
    >
      <span class="sign" aria-hidden="true">${signOf(state)}</span>
      <div class="who">
        ${
          node
            ? html`<button type="button" class="link-like name" onClick=${() => choose(node)}>${title}</button>`
            : html`<span class="name">${title}</span>`
        }
        <span class="kind">${kind}</span>
      </div>
      <${Age} time=${since} />
      <p class=${line ? "doing mono" : "doing"} title=${doing}>${doing}</p>
      <p class="far" title=${farTitle}>${far}</p>
    </li>`,
);

const Process = memo(
  ({ layer }) =>
    html`<li class="process${layer.cpu >= 5 ? " busy" : ""}" data-key=${layer.who}>
      <span class="name">${layer.who}</span><span class="vitals">${vitals(layer)}</span>
    </li>`,
);

/** The rows: working agents first, then the upper layers; runners only without their agent; a dead agent until its restart. */
function rowsOf(state) {
  const layers = state.layers.filter(
    layer => layer.living || (layer.status === "crashed" && state.nodes[layer.node]?.place === "working"),
  );
  const agents = new Set(layers.filter(layer => layer.kind === "orchestrator").map(layer => layer.node));
  const shown = layers.filter(layer => layer.kind !== "runner" || !agents.has(layer.node));
  return shown
    .map(layer => row(state, layer, state.nodes[layer.node]))
    .sort((a, b) => a.order - b.order || a.who.localeCompare(b.who));
}

function row(state, layer, node) {
  const lead = LEAD.indexOf(layer.kind);
  return lead < 0 ? agentRow(state, layer, node) : upperRow(state, layer, lead);
}

/** The row of the launcher, a guardian or a processor. */
function upperRow(state, layer, lead) {
  return {
    who: layer.who,
    node: null,
    state: layer.living ? stateOf(layer.status) : "failed",
    active: false,
    title: KINDS[layer.kind] ?? layer.who,
    kind: "",
    since: null,
    line: "",
    doing: upperLayerDoing(state, layer),
    far: "",
    farTitle: null,
    order: 2 + lead,
  };
}

const NOTHING = /** @type {any} */ ({}); // known about the node of an agent that is still starting

const again = node => node.attempt > 1 && `attempt ${node.attempt}`;
const joined = (words, sign) => words.filter(Boolean).join(sign);

/** Progress of an agent. */
const farOf = node => ({
  far: joined([changedSoFar(node.work), usually(node.work, node.since)], " · "),
  farTitle: node.work?.usual ? `median of ${node.work.usual.of}` : null,
});

/** The row of an agent, or of the runner above it. */
function agentRow(state, layer, node = NOTHING) {
  const look = !layer.living ? "failed" : node.node ? shown(state, node) : stateOf(layer.status);
  const busy = look === "working" || look === "asking";
  const line = (look === "working" && node.work?.line) || "";
  return {
    who: layer.who,
    node: layer.node,
    state: look,
    active: busy,
    title: layer.node ?? layer.who,
    kind: joined([node.agent || KINDS[layer.kind], again(node)], " · "),
    since: node.since,
    line,
    doing: line || node.doing || joined([nodeWord(node, look), layer.phase], ", "),
    ...(busy ? farOf(node) : { far: "", farTitle: null }),
    order: Number(!busy),
  };
}

/** Activity of an upper layer. */
function upperLayerDoing(state, layer) {
  if (!layer.living) return layer.why || "";
  const entry = state.queue.entries.find(
    one => one.state === "testing" || one.state === "landing" || one.state === "candidate",
  );
  if (layer.kind === "guardian") return guardianDoing(tally(state));
  if (layer.kind === "processor")
    return entry ? `${entry.state === "landing" ? "landing" : "testing"} ${entry.node}` : "idle";
  return "supervising the guardian";
}

/** Number of nodes by state, in the words of `garrison top`. */
function guardianDoing(found) {
  const words = {
    working: "at work",
    asking: found.asking === 1 ? "asks you" : "ask you",
    landing: "to land",
    waiting: "waiting",
    failed: "failed",
  };
  return Object.entries(words)
    .filter(([name]) => found[name])
    .map(([name, word]) => `${found[name]} ${word}`)
    .join(", ");
}

function vitals(layer) {
  const parts = [];
  if (layer.pid) parts.push(`pid ${layer.pid}`);
  if (typeof layer.cpu === "number") parts.push(`${layer.cpu.toFixed(0)} % CPU`);
  if (typeof layer.memory_mib === "number") parts.push(`${layer.memory_mib.toFixed(0)} MiB`);
  if (layer.beat_age_s > 30) parts.push(`no heartbeat for ${span(layer.beat_age_s)}`);
  return parts.join(" · ");
}
