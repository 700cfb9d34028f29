// Panel of the crew: the agents and the other layers of the run, which of them work now, and what each is doing.

import { el, empty, keyed, panel, say, set } from "./dom.js";
import { shown, tally } from "./state.js";
import { reset, since } from "./time.js";
import { nodeWord, signOf, span, stateOf } from "./words.js";

const KINDS = { launch: "Launcher", launcher: "Launcher", guardian: "Guardian", runner: "Runner", orchestrator: "Agent", processor: "Merge processor" };
const LEAD = ["launcher", "launch", "guardian", "processor"];

/** The panel; `choose` opens a node. */
export function railPanel(choose) {
  const number = el("span", { class: "number" });
  const { section, body } = panel("rail", "Crew", number);
  const list = el("ul", { class: "agents", dataset: { testid: "agent-rail" } });
  const nothing = empty("No process of this run is alive.");
  body.append(list, nothing);

  function show(state) {
    const rows = rowsOf(state);
    say(number, rows.filter(row => row.active).length || "");
    nothing.hidden = rows.length > 0;
    keyed(list, rows, row => row.who, make, update);
  }

  function make(row) {
    const name = row.node ? el("button", { type: "button", class: "link-like name", onclick: () => choose(row.node) }, row.title)
      : el("span", { class: "name" }, row.title);
    return el("li", { dataset: { testid: `agent-${row.who}`, agent: row.who } },
      el("span", { class: "sign", "aria-hidden": "true" }),
      el("div", { class: "who" }, name, el("span", { class: "kind" })), since(row.since),
      el("p", { class: "doing" }), el("p", { class: "vitals" }));
  }

  function update(element, row) {
    set(element, "class", `agent s-${row.state}${row.active ? " active" : ""}`);
    say(element.querySelector(".sign"), signOf(row.state));
    say(element.querySelector(".kind"), row.kind);
    say(element.querySelector(".doing"), row.doing);
    set(element.querySelector(".doing"), "title", row.doing);
    say(element.querySelector(".vitals"), row.vitals);
    reset(element.querySelector("time"), row.since);
  }

  return { section, show };
}

/** The rows: working agents first, then the upper layers; runners only without their agent; a dead agent until its restart. */
function rowsOf(state) {
  const layers = state.layers.filter(layer => layer.living || (layer.status === "crashed" && state.nodes[layer.node]?.place === "working"));
  const agents = new Set(layers.filter(layer => layer.kind === "orchestrator").map(layer => layer.node));
  const shown = layers.filter(layer => layer.kind !== "runner" || !agents.has(layer.node));
  return shown.map(layer => row(state, layer, state.nodes[layer.node])).sort((a, b) => a.order - b.order || a.who.localeCompare(b.who));
}

function row(state, layer, node) {
  const lead = LEAD.indexOf(layer.kind);
  const agent = lead < 0;
  const look = !layer.living ? "failed" : agent && node ? shown(state, node) : stateOf(layer.status);
  const busy = agent && (look === "working" || look === "asking");
  return {
    who: layer.who, node: agent ? layer.node : null, state: look, active: busy,
    title: agent ? layer.node ?? layer.who : KINDS[layer.kind] ?? layer.who,
    kind: agent ? [node?.agent || KINDS[layer.kind], node?.attempt > 1 && `attempt ${node.attempt}`].filter(Boolean).join(" · ") : "",
    since: agent ? node?.since : null,
    doing: agent ? node?.doing || [nodeWord(node, look), layer.phase].filter(Boolean).join(", ") : upperLayerDoing(state, layer),
    vitals: vitals(layer), order: agent ? Number(!busy) : 2 + lead,
  };
}

/** What an upper layer is doing. */
function upperLayerDoing(state, layer) {
  if (!layer.living) return layer.why || "";
  const entry = state.queue.entries.find(one => one.state === "testing" || one.state === "landing" || one.state === "candidate");
  const { working = 0, asking = 0 } = tally(state);
  if (layer.kind === "guardian") return working + asking ? `${working + asking} at work` : "waiting";
  if (layer.kind === "processor") return entry ? `${entry.state === "landing" ? "landing" : "testing"} ${entry.node}` : "idle";
  return "supervising the guardian";
}

function vitals(layer) {
  const parts = [];
  if (layer.pid) parts.push(`pid ${layer.pid}`);
  if (typeof layer.cpu === "number") parts.push(`${layer.cpu.toFixed(0)} % CPU`);
  if (typeof layer.memory_mib === "number") parts.push(`${layer.memory_mib.toFixed(0)} MiB`);
  if (layer.beat_age_s > 30) parts.push(`no heartbeat for ${span(layer.beat_age_s)}`);
  return parts.join(" · ");
}
