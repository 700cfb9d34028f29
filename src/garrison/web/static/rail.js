// Panel of the crew: the agents and the other layers of the run, which of them work now, and how far each is. What its
// processes use of the machine is in a tab of its own.

import { el, empty, keyed, panel, say, set } from "./dom.js";
import { shown, tally } from "./state.js";
import { reset, since } from "./time.js";
import { changedSoFar, nodeWord, signOf, span, stateOf, usually } from "./words.js";

const KINDS = { launch: "Launcher", launcher: "Launcher", guardian: "Guardian", runner: "Runner", orchestrator: "Agent", processor: "Merge processor" };
const LEAD = ["launcher", "launch", "guardian", "processor"];

/** The panel; `choose` opens a node. */
export function railPanel(choose) {
  const number = el("span", { class: "number" });
  const tab = (name, words) => el("button", { type: "button", role: "tab", class: "quiet", id: `rail-tab-${name}`, "aria-controls": `rail-${name}`,
    onclick: () => turn(name), onkeydown: event => {
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
      const other = name === "crew" ? "machine" : "crew";
      turn(other);
      tabs[other].focus();
    } }, words);
  const tabs = { crew: tab("crew", "Agents"), machine: tab("machine", "Machine") };
  const { section, body } = panel("rail", "Crew", number, el("div", { class: "tabs", role: "tablist", "aria-label": "About the crew" }, Object.values(tabs)));
  const list = el("ul", { class: "agents", dataset: { testid: "agent-rail" } });
  const nothing = empty("No process of this run is alive.");
  const machine = el("ul", { class: "machine" });
  const lists = {
    crew: el("div", { id: "rail-crew", role: "tabpanel", "aria-labelledby": "rail-tab-crew" }, list, nothing),
    machine: el("div", { id: "rail-machine", role: "tabpanel", tabindex: "0", "aria-labelledby": "rail-tab-machine", hidden: true }, machine),
  };
  body.append(...Object.values(lists));
  let latest = null, chosen = "crew";

  function turn(name) {
    chosen = name;
    for (const [other, control] of Object.entries(tabs)) {
      set(control, "aria-selected", String(other === name));
      set(control, "tabindex", other === name ? "0" : "-1");
      lists[other].hidden = other !== name;
    }
    if (latest) show(latest);
  }

  function show(state) {
    latest = state;
    const rows = rowsOf(state);
    say(number, rows.filter(row => row.active).length || "");
    nothing.hidden = rows.length > 0;
    keyed(list, rows, row => row.who, make, update);
    if (chosen === "machine") keyed(machine, state.layers.filter(layer => layer.living), layer => layer.who, process, measure);
  }

  function make(row) {
    const name = row.node ? el("button", { type: "button", class: "link-like name", onclick: () => choose(row.node) }, row.title)
      : el("span", { class: "name" }, row.title);
    return el("li", { dataset: { testid: `agent-${row.who}`, agent: row.who } },
      el("span", { class: "sign", "aria-hidden": "true" }),
      el("div", { class: "who" }, name, el("span", { class: "kind" })), since(row.since),
      el("p", { class: "doing" }), el("p", { class: "far" }));
  }

  function update(element, row) {
    set(element, "class", `agent s-${row.state}${row.active ? " active" : ""}`);
    say(element.querySelector(".sign"), signOf(row.state));
    say(element.querySelector(".kind"), row.kind);
    say(element.querySelector(".doing"), row.doing);
    set(element.querySelector(".doing"), "title", row.doing);
    set(element.querySelector(".doing"), "class", row.line ? "doing mono" : "doing");
    say(element.querySelector(".far"), row.far);
    set(element.querySelector(".far"), "title", row.farTitle);
    reset(element.querySelector("time"), row.since);
  }

  const process = layer => el("li", { class: "process" }, el("span", { class: "name" }, layer.who), el("span", { class: "vitals" }));

  function measure(element, layer) {
    set(element, "class", `process${layer.cpu >= 5 ? " busy" : ""}`);
    say(element.lastChild, vitals(layer));
  }

  turn("crew");
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
    line: busy && look === "working" ? node?.work?.line : "",
    doing: agent ? (busy && look === "working" && node?.work?.line) || node?.doing || [nodeWord(node, look), layer.phase].filter(Boolean).join(", ")
      : upperLayerDoing(state, layer),
    far: busy ? [changedSoFar(node.work), usually(node.work, node.since)].filter(Boolean).join(" · ") : "",
    farTitle: busy && node.work?.usual ? `median of ${node.work.usual.of}` : null,
    order: agent ? Number(!busy) : 2 + lead,
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
