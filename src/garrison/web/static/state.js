// What is known of a run: a snapshot, and what each event changes of it. Pure; the page draws what this returns.
// The rule of this room: an event changes only what its patch names, and what is kept of the past is bounded.

export const KEPT = 500; // lines of the timeline, and signals

/** A state from the server's snapshot. */
export function fromSnapshot(snapshot) {
  return {
    ...snapshot,
    nodes: { ...snapshot.nodes },
    layers: snapshot.layers ?? [],
    queue: snapshot.queue ?? { entries: [] },
    gates: snapshot.gates ?? [],
    timeline: (snapshot.timeline ?? []).slice(-KEPT),
    signals: (snapshot.signals ?? []).slice(-KEPT),
    costs: snapshot.costs ?? { nodes: {} },
  };
}

/**
 * A state after an event.
 * @returns {{state: Object, changed: Set<string>}} `changed` names the parts to draw again
 */
export function patched(state, patch) {
  const next = { ...state };
  const changed = new Set();
  for (const [name, value] of Object.entries(patch ?? {})) {
    if (name === "nodes") next.nodes = { ...next.nodes, ...value };
    else if (name === "timeline_add") next.timeline = [...next.timeline, ...value].slice(-KEPT);
    else if (name === "signals_add") next.signals = [...next.signals, ...value].slice(-KEPT);
    else next[name] = value;
    changed.add(name.replace("_add", ""));
  }
  return { state: next, changed };
}

/** The state that a node is shown in: one whose gate is open, or whose agent asks, asks you. `of` reads a status. */
export function shown(state, node, of) {
  return node.asks || state.gates.some(gate => gate.node === node.node) ? "asking" : of(node.status);
}

/** What waits for a person: gates first, then questions of agents, then what failed or was parked. */
export function waiting(state) {
  const asked = new Set(state.gates.map(gate => gate.node));
  const nodes = Object.values(state.nodes);
  return [
    ...state.gates.map(gate => ({ kind: "gate", key: `gate ${gate.gate}`, gate, node: state.nodes[gate.node] })),
    ...nodes.filter(node => node.asks && !asked.has(node.node)).map(node => ({ kind: "asks", key: `asks ${node.node}`, node })),
    ...nodes.filter(node => node.status === "parked").map(node => ({ kind: "parked", key: `parked ${node.node}`, node })),
    ...nodes.filter(node => node.status === "failed").map(node => ({ kind: "failed", key: `failed ${node.node}`, node })),
  ];
}

/** How many nodes there are in each state. `of` reads a status. */
export function tally(state, of) {
  const found = {};
  for (const node of Object.values(state.nodes)) {
    const name = shown(state, node, of);
    found[name] = (found[name] ?? 0) + 1;
  }
  return found;
}
