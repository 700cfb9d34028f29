// State of a run: a snapshot, and the patches of later events. Pure; the page draws what this returns. An event changes
// only what its patch names, and the lists of the past are bounded.

import { stateOf } from "./words.js";

const KEPT = { timeline: 300, signals: 200 };
const UNATTENDED = new Set(["stopped", "interrupted", "failed", "corrupt"]); // statuses of a run without active agents
const ADDED = { timeline_add: "timeline", signals_add: "signals" };

/**
 * A run as the page has it: its snapshot, patched since, with all that is known of each node.
 * @typedef {Omit<import("./records").RunSnapshot, "nodes"> & {nodes: Record<string, import("./records").WholeNode>}} State
 */

/** A state from the server's snapshot. */
export function fromSnapshot(snapshot) {
  return { ...snapshot, timeline: latest("timeline", snapshot.timeline), signals: latest("signals", snapshot.signals) };
}

/**
 * A state after an event: nodes and layers are updated one by one, lists grow, all else is replaced; an unchanged part
 * stays the same object.
 */
export function patched(state, patch) {
  const next = { ...state };
  for (const [name, value] of Object.entries(patch ?? {})) {
    const part = ADDED[name] ?? name;
    if (name === "nodes") next.nodes = updated(next.nodes, value);
    else if (name === "followed") next.followed = { ...next.followed, ...value };
    else if (name === "layers") next.layers = Object.values(updated(byWho(next.layers), byWho(value)));
    else if (name in ADDED) next[part] = latest(part, [...next[part], ...value]);
    else next[name] = value;
  }
  return next;
}

function updated(known, given) {
  const next = { ...known };
  for (const [name, value] of Object.entries(given)) next[name] = { ...next[name], ...value };
  return next;
}

const byWho = layers => Object.fromEntries(layers.map(layer => [layer.who, layer]));

/** The youngest of a list, the oldest first. Journals are read side by side, so they may come in any order. */
function latest(part, entries) {
  const order = (one, other) =>
    one.at < other.at ? -1 : one.at > other.at ? 1 : one.id < other.id ? -1 : Number(one.id > other.id);
  return [...entries].sort(order).slice(-KEPT[part]);
}

/**
 * The state in which a node is shown: one whose question is open, or whose agent asks, asks you.
 * @param {State} state
 * @param {import("./records").WholeNode} node
 * @returns {string}
 */
export function shown(state, node) {
  if (node.shape === "Mdiamond") return state.status === "new" ? "waiting" : "passed";
  if (node.shape === "Msquare") return state.status === "done" ? "passed" : "waiting";
  if ((node.asks && !UNATTENDED.has(state.status)) || asking(state).some(one => one.node === node.node))
    return "asking";
  if (!node.place && !node.status) return passed(state, node.node) ? "passed" : "waiting";
  const look = stateOf(node.place || node.status);
  return look === "working" && UNATTENDED.has(state.status) ? "stopped" : look;
}

/**
 * Whether a node without an agent (a fork, a join, a choice) was passed: a node after it has started.
 * @param {State} state
 * @param {string} name
 * @returns {boolean}
 */
function passed(state, name) {
  const steps = stepsFromStart(state);
  return (state.next[name] ?? [])
    .filter(to => steps.get(to) > steps.get(name))
    .some(to => {
      const node = state.nodes[to];
      if (!node || node.shape === "Msquare") return state.status === "done";
      return node.place || node.status ? !["waiting", "skipped"].includes(shown(state, node)) : passed(state, to);
    });
}

const measured = new WeakMap();

/**
 * Node → edges from the start at least; an edge to a smaller number goes back into a loop.
 * @param {State} state
 */
function stepsFromStart({ next, nodes }) {
  if (measured.has(next)) return measured.get(next);
  const steps = new Map(
    Object.values(nodes)
      .filter(node => node.shape === "Mdiamond")
      .map(node => [node.node, 0]),
  );
  for (const [name, count] of steps)
    // entries added during the loop are visited as well
    for (const to of next[name] ?? []) if (!steps.has(to)) steps.set(to, count + 1);
  measured.set(next, steps);
  return steps;
}

const asking = (/** @type {State} */ state) => state.gates.filter(one => one.kind !== "signal");

/** Items that wait for the user, as the server lists them, each with its node. */
export const waiting = (/** @type {State} */ state) =>
  (state.waits ?? []).map(one => ({ ...one, node: state.nodes[one.node] }));

/**
 * What the user should see next to them, without being counted: problems, and nodes that failed in a run that is over.
 * @param {State} state
 */
export function notes(state) {
  const known = new Set((state.waits ?? []).map(one => one.key));
  const found = [...(state.hint ? [state.hint] : []), ...(state.problems ?? [])].map(text => ({
    kind: "run",
    key: `run ${text}`,
    text,
  }));
  const failed = Object.values(state.nodes)
    .filter(node => shown(state, node) === "failed")
    .map(node => ({ kind: "failed", key: `failed ${node.node}`, node }));
  return [...found, ...failed].filter(one => !known.has(one.key));
}

/**
 * The run's status in a word: it is running while a node is worked on or lands, or another has just ended.
 * @param {State} state
 * @param {number} waits
 */
export function runWord(state, waits) {
  if (state.status !== "running" && state.status !== "waiting") return state.status;
  const { working = 0, landing = 0, asking = 0 } = tally(state);
  if (working || landing) return "running";
  const left = Object.values(state.nodes).some(node => node.agent && shown(state, node) === "waiting" && !node.cannot);
  return asking || waits ? "waiting for you" : left ? "running" : "nothing at work";
}

/**
 * How many of the nodes with an agent are in each state.
 * @param {State} state
 * @returns {Record<string, number>}
 */
export function tally(state) {
  const found = {};
  for (const node of Object.values(state.nodes).filter(one => one.agent)) {
    const name = shown(state, node);
    found[name] = (found[name] ?? 0) + 1;
  }
  return found;
}
