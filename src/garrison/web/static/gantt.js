// Panel of time and money: a bar for each node (what it did or waited for, and when), the gate runs of the merge queue, how
// long the rest may take, and costs over time. Positions are percentages, so that nothing is drawn again when sizes change.

import { curves } from "./cost_curves.js";
import { el, empty, keyed, panel, say, set, svg } from "./dom.js";
import { clock, count, span } from "./words.js";

const KINDS = { // span → its class and its words
  "ready": ["k-ready", "waiting for a free agent"], "starting": ["k-starting", "starting"], "working": ["k-working", "working"],
  "checking": ["k-checking", "checking"], "restarting": ["k-restarting", "restarting"], "asks": ["k-asks", "waiting for your answer"],
  "signal": ["k-signal", "waiting for a signal"], "limit": ["k-limit", "waiting for a limit"], "parked": ["k-parked", "parked"],
  "queued": ["k-queued", "in the merge queue"], "testing": ["k-testing", "tested by the gate"],
  "waiting for approval": ["k-approval", "waiting for approval"], "stopped": ["k-stopped", "stopped"],
};
const MARKS = { // mark → its sign and state
  "died": ["✕", "failed"], "retry": ["↻", "back"], "landed": ["✓", "landed"], "no change": ["=", "unchanged"], "failed": ["✕", "failed"],
  "conflict": ["✕", "failed"], "rejected": ["✕", "failed"],
};
const QUEUE = "merge queue"; // the name of its row, which no node can have
const EVERY = 5000; // milliseconds between two readings while events arrive
const LASTING = 30000; // milliseconds after which a run at work is read again without one
const TICKS = 4;

/**
 * The panel.
 * @param {function(string)} choose opens a node
 * @param {function(): Promise<Object>} load reads the timeline
 */
export function ganttPanel(choose, load) {
  const { section, body } = panel("gantt", "Time and cost");
  const sum = el("p", { class: "gantt-sum" });
  const axis = el("div", { class: "gantt-axis", "aria-hidden": "true" }, el("span"), el("div"), el("span"));
  const rows = el("ol", { class: "gantt-rows" });
  const legend = el("ul", { class: "gantt-legend", "aria-label": "Colours" });
  const facts = el("dl", { class: "gantt-facts" });
  const money = curves();
  const nothing = empty("Nothing has started.");
  body.append(sum, nothing, axis, rows, legend, facts, money.section);
  let visible = false, reading = false, due = 0, timer = null;

  /** Read it again soon: at once the first time, then as often as `EVERY`. */
  function show() {
    if (visible && !reading && !timer) timer = setTimeout(read, Math.max(0, due - Date.now()));
  }

  async function read() {
    [timer, reading] = [null, true];
    try {
      const made = await load();
      draw(made);
      if (!made.over) lasting();
    } catch (problem) {
      say(sum, problem.message);
    }
    due = Date.now() + EVERY;
    reading = false;
  }

  function lasting() {
    setTimeout(() => { if (!document.hidden) show(); }, LASTING);
  }

  /** Show or hide the panel; it reads only while it is shown. */
  function reveal(on) {
    visible = on;
    section.hidden = !on;
    show();
  }

  function draw(made) {
    const whole = Math.max(made.end - made.begin, 0.001);
    const at = time => 100 * Math.min(1, Math.max(0, (time - made.begin) / whole));
    const busy = made.lanes.filter(lane => lane.spans.length || lane.marks.length);
    say(sum, headline(made));
    nothing.hidden = busy.length > 0;
    axis.hidden = rows.hidden = !busy.length;
    axis.children[1].replaceChildren(...Array.from({ length: TICKS + 1 }, (_, part) =>
      el("span", {}, part ? minute(made.begin + whole * part / TICKS, whole) : clock(made.begin).slice(0, -3))));
    const queue = made.queue.gates.length ? [{ node: QUEUE, gates: made.queue.gates, landings: made.queue.landings, spans: [], marks: [] }] : [];
    keyed(rows, [...queue, ...busy], lane => lane.node, row, (element, lane) => paint(element, lane, made, at));
    const used = new Set(made.lanes.flatMap(lane => lane.spans.map(one => one.kind)));
    keyed(legend, Object.keys(KINDS).filter(kind => used.has(kind)), kind => kind, kind =>
      el("li", {}, svg("svg", { "aria-hidden": "true", width: 10, height: 10 }, svg("rect", { width: 10, height: 10, class: KINDS[kind][0] })), KINDS[kind][1]));
    describe(made);
    money.show(made.costs, made);
  }

  function row(lane) {
    const name = lane.node === QUEUE ? el("span", { class: "name" }, lane.node)
      : el("button", { type: "button", class: "link-like name", onclick: () => choose(lane.node) }, lane.node);
    return el("li", { class: "gantt-row" }, name, svg("svg", { class: "gantt-bar", role: "img" }), el("span", { class: "kind" }));
  }

  function paint(element, lane, made, at) {
    const signature = JSON.stringify([lane, made.begin, made.end]);
    if (element.dataset.drawn === signature) return;
    element.dataset.drawn = signature;
    const [, bar, total] = element.children;
    const rect = (begin, end, kind, title) => svg("rect", {
      x: `${at(begin)}%`, width: `${Math.max(at(end) - at(begin), 0.15)}%`, y: "15%", height: "70%", rx: 2, class: kind }, svg("title", {}, title));
    const sign = (time, mark, title) => svg("text", { x: `${at(time)}%`, y: "50%", class: `sign s-${mark[1]}` }, svg("title", {}, title), mark[0]);
    const parts = lane.gates ? gates(lane, made, rect) : spans(lane, made, rect);
    const marks = lane.marks.filter(one => one.kind in MARKS).map(one =>
      sign(one.at, MARKS[one.kind], [`${lane.node}: ${one.kind}, ${clock(one.at)}`, one.text].filter(Boolean).join(": ")));
    bar.replaceChildren(...parts, ...marks);
    const spent = Object.entries(lane.seconds ?? {}).filter(([kind]) => kind !== "ready");
    set(bar, "aria-label", lane.gates ? `${QUEUE}: ${count(lane.gates.length, "gate run")}` : [`${lane.node}:`, spent.map(([kind, seconds]) =>
      `${KINDS[kind]?.[1] ?? kind} ${span(seconds)}`).join(", ")].join(" "));
    say(total, lane.gates ? count(lane.gates.length, "gate run") : span(spent.reduce((all, [, seconds]) => all + seconds, 0)));
  }

  const spans = (lane, made, rect) => lane.spans.map(one => rect(one.begin, one.end ?? made.end, KINDS[one.kind]?.[0] ?? "",
    [`${lane.node}: ${KINDS[one.kind]?.[1] ?? one.kind}${one.attempt > 1 ? `, attempt ${one.attempt}` : ""}, ${span((one.end ?? made.end) - one.begin)}`, one.text]
      .filter(Boolean).join(": ")));

  const gates = (lane, made, rect) => lane.gates.map(one => rect(one.begin, one.end ?? made.end,
    one.result === "green" ? "k-green" : one.result ? "k-red" : "k-testing",
    `gate run of ${count(one.entries, "entry", "entries")}: ${one.result || "running"}, ${span((one.end ?? made.end) - one.begin)}`));

  /** Say in words where the time went, and how fast the queue is. */
  function describe(made) {
    const spent = Object.entries(made.seconds).sort((one, other) => other[1] - one[1]);
    const people = ["asks", "waiting for approval", "parked"].reduce((all, kind) => all + (made.seconds[kind] ?? 0), 0);
    const { landed, per_hour: pace, gate_s: gate, wait_s: wait, gates: runs, red } = made.queue;
    const lines = [
      ["All nodes", spent.map(([kind, seconds]) => `${KINDS[kind]?.[1] ?? kind} ${span(seconds)}`).join(", ")],
      ["Waiting for people", people ? span(people) : ""],
      ["Merge queue", [landed ? `${landed} landed` : "", pace && landed > 1 ? `${pace.toFixed(1)} an hour` : "", runs.length ? `${count(runs.length, "gate run")}, ${red} red` : "",
        gate === null ? "" : `a gate run takes ${span(gate)}`, wait === null ? "" : `an entry lands after ${span(wait)}`].filter(Boolean).join(", ")],
    ];
    keyed(facts, lines.filter(([, words]) => words), ([name]) => name, ([name]) => el("div", {}, el("dt", {}, name), el("dd")),
      (element, [, words]) => say(element.lastChild, words));
  }

  section.hidden = true;
  return { section, show, reveal };
}

/** The time of day at a tick, with seconds if ticks are close. */
const minute = (time, whole) => new Date(time * 1000).toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", hour12: false,
  ...(whole < 60 * TICKS ? { second: "2-digit" } : {}) });

const headline = made => [`${span(made.end - made.begin)} so far`.replace(made.over ? " so far" : "", ""),
  made.estimate ? `about ${span(made.estimate.seconds)} left for ${count(made.estimate.nodes, "node")}, from the times of ${made.estimate.sample} finished, without waits for people` : ""]
  .filter(Boolean).join("; ");
