// Panel of time and cost: a bar for each node (when it worked or waited for what), the gate runs of the merge queue, how
// long the rest may take, and costs over time. Positions are percentages, so that nothing is drawn again when sizes change.

import { Curves } from "./cost_curves.js";
import { Component, Empty, html, memo, Panel, sameDrawing, Skeleton } from "./view.js";
import { clock, count, span } from "./words.js";

const KINDS = {
  // span → its class and its words
  ready: ["k-ready", "waiting for a free agent"],
  starting: ["k-starting", "starting"],
  working: ["k-working", "working"],
  checking: ["k-checking", "checking"],
  restarting: ["k-restarting", "restarting"],
  asks: ["k-asks", "waiting for your answer"],
  signal: ["k-signal", "waiting for a signal"],
  limit: ["k-limit", "waiting for a limit"],
  parked: ["k-parked", "parked"],
  queued: ["k-queued", "in the merge queue"],
  testing: ["k-testing", "tested by the gate"],
  "waiting for approval": ["k-approval", "waiting for approval"],
  stopped: ["k-stopped", "stopped"],
};
const MARKS = {
  // mark → its sign and state
  died: ["✕", "failed"],
  retry: ["↻", "back"],
  landed: ["✓", "landed"],
  "no change": ["=", "unchanged"],
  kept: ["+", "kept"],
  failed: ["✕", "failed"],
  conflict: ["✕", "failed"],
  rejected: ["✕", "failed"],
};
const QUEUE = "merge queue"; // the name of its row, which no node can have
const EVERY = 5000; // milliseconds between two readings while events arrive
const LASTING = 30000; // milliseconds after which an active run is read again without one
const TICKS = 4;

const PARTS = ["status", "timeline", "queue", "costs"]; // of the state: one that changed is a reason to read again

/**
 * The panel; it reads only while it is shown.
 * @param {Object} props
 * @param {boolean} props.hidden
 * @param {import("./state").State|null} props.state of the run
 * @param {(a: string) => void} props.choose opens a node
 * @param {() => Promise<Object>} props.load reads the timeline
 */
export class Gantt extends Component {
  constructor(props) {
    super(props);
    this.state = { made: null, trouble: "" };
    this.due = 0; // when it may be read next
  }

  componentDidMount() {
    this.soon();
  }
  shouldComponentUpdate(next, state) {
    return state !== this.state || !sameDrawing(PARTS, this.props, next);
  }
  componentDidUpdate(before) {
    if (!sameDrawing(PARTS, before, this.props)) this.soon();
  }

  componentWillUnmount() {
    clearTimeout(this.timer);
    clearTimeout(this.lasting);
  }

  /** Read it again soon: at once the first time, then as often as `EVERY`. */
  soon() {
    if (!this.props.hidden && !this.reading && !this.timer)
      this.timer = setTimeout(() => this.read(), Math.max(0, this.due - Date.now()));
  }

  async read() {
    [this.timer, this.reading] = [null, true];
    try {
      const made = await this.props.load();
      this.setState({ made, trouble: "" });
      clearTimeout(this.lasting);
      if (!made.over)
        this.lasting = setTimeout(() => {
          if (!document.hidden) this.soon();
        }, LASTING);
    } catch (problem) {
      this.setState({ trouble: problem.message });
    }
    this.due = Date.now() + EVERY;
    this.reading = false;
  }

  render({ hidden, choose }, { made, trouble }) {
    return html`<${Panel} id="gantt" title="Time and cost" hidden=${hidden}>
      ${(made || trouble) && html`<p class="gantt-sum">${trouble || headline(made)}</p>`}
      ${made ? html`<${Chart} made=${made} choose=${choose} />` : !trouble && html`<${Skeleton} lines=${6} />`}<//
    >`;
  }
}

const Chart = memo(({ made, choose }) => {
  const whole = Math.max(made.end - made.begin, 0.001);
  const busy = made.lanes.filter(lane => lane.spans.length || lane.marks.length);
  const { gates, landings } = made.queue;
  const queue = gates.length ? [{ node: QUEUE, gates, landings, spans: [], marks: [] }] : [];
  const used = new Set(made.lanes.flatMap(lane => lane.spans.map(one => one.kind)));
  return html` ${
      busy.length
        ? html`<div class="gantt-axis" aria-hidden="true">
              <span />
              <div>
                ${Array.from(
                  { length: TICKS + 1 },
                  (_, part) =>
                    html`<span key=${part}>
                      ${part ? minute(made.begin + (whole * part) / TICKS, whole) : clock(made.begin).slice(0, -3)}</span
                    >`,
                )}
              </div>
              <span />
            </div>
            <ol class="gantt-rows">
              ${[...queue, ...busy].map(
                lane =>
                  html`<${Row} key=${lane.node} lane=${lane} begin=${made.begin} end=${made.end} choose=${choose} />`,
              )}
            </ol>`
        : html`<${Empty}>Nothing has started.<//>`
    }
    <ul class="gantt-legend" aria-label="Colours">
      ${Object.entries(KINDS)
        .filter(([kind]) => used.has(kind))
        .map(
          ([kind, [look, words]]) =>
            html`<li key=${kind}>
              <svg aria-hidden="true" width="10" height="10"><rect width="10" height="10" class=${look} /></svg>${words}
            </li>`,
        )}
    </ul>
    <dl class="gantt-facts">
      ${factsOf(made).map(
        ([name, words]) =>
          html`<div key=${name}>
            <dt>${name}</dt>
            <dd>${words}</dd>
          </div>`,
      )}
    </dl>
    <${Curves} costs=${made.costs} begin=${made.begin} end=${made.end} />`;
});

/** A node's row. Each reading makes new objects, mostly with the same content: it is drawn again only if that differs. */
const Row = memo(
  ({ lane, begin, end, choose }) => {
    const at = time => 100 * Math.min(1, Math.max(0, (time - begin) / Math.max(end - begin, 0.001)));
    const rect = (from, to, look, title, key) =>
      html`<rect
        key=${key}
        x="${at(from)}%"
        width="${Math.max(at(to) - at(from), 0.15)}%"
        y="15%"
        height="70%"
        rx="2"
        class=${look}
      >
        <title>${title}</title></rect
      >`;
    const spent = Object.entries(lane.seconds ?? {}).filter(([kind]) => kind !== "ready");
    const told = spent.map(([kind, seconds]) => `${KINDS[kind]?.[1] ?? kind} ${span(seconds)}`).join(", ");
    const runs = lane.gates && count(lane.gates.length, "gate run");
    return html`<li class="gantt-row" data-key=${lane.node}>
      ${
        lane.gates
          ? html`<span class="name">${lane.node}</span>`
          : html`<button type="button" class="link-like name" onClick=${() => choose(lane.node)}>${lane.node}</button>`
      }
      <svg class="gantt-bar" role="img" aria-label=${runs ? `${QUEUE}: ${runs}` : `${lane.node}: ${told}`}>
        ${lane.gates ? gatesOf(lane, end, rect) : spansOf(lane, end, rect)}
        ${lane.marks
          .filter(one => one.kind in MARKS)
          .map(
            (one, place) =>
              html`<text key="mark ${place}" x="${at(one.at)}%" y="50%" class="sign s-${MARKS[one.kind][1]}">
                <title>${[`${lane.node}: ${one.kind}, ${clock(one.at)}`, one.text].filter(Boolean).join(": ")}</title
                >${MARKS[one.kind][0]}</text
              >`,
          )}
      </svg>
      <span class="kind">${runs ?? span(spent.reduce((all, [, seconds]) => all + seconds, 0))}</span>
    </li>`;
  },
  (one, other) =>
    one.begin === other.begin &&
    one.end === other.end &&
    one.choose === other.choose &&
    JSON.stringify(one.lane) === JSON.stringify(other.lane),
);

function titleOf(node, one, end) {
  const attempt = one.attempt > 1 ? `, attempt ${one.attempt}` : "";
  return `${node}: ${KINDS[one.kind]?.[1] ?? one.kind}${attempt}, ${span((one.end ?? end) - one.begin)}`;
}

const spansOf = (lane, end, rect) =>
  lane.spans.map((one, place) =>
    rect(
      one.begin,
      one.end ?? end,
      KINDS[one.kind]?.[0] ?? "",
      [titleOf(lane.node, one, end), one.text].filter(Boolean).join(": "),
      place,
    ),
  );

const gatesOf = (lane, end, rect) =>
  lane.gates.map((one, place) =>
    rect(
      one.begin,
      one.end ?? end,
      one.result === "green" ? "k-green" : one.result ? "k-red" : "k-testing",
      `gate run of ${count(one.entries, "entry", "entries")}: ${one.result || "running"}, ${span((one.end ?? end) - one.begin)}`,
      place,
    ),
  );

/** Where the time went, and how fast the queue is: [name, words]. */
function factsOf(made) {
  const spent = Object.entries(made.seconds).sort((one, other) => other[1] - one[1]);
  const people = ["asks", "waiting for approval", "parked"].reduce((all, kind) => all + (made.seconds[kind] ?? 0), 0);
  const { landed, per_hour: pace, gate_s: gate, wait_s: wait, gates: runs, red } = made.queue;
  return [
    ["All nodes", spent.map(([kind, seconds]) => `${KINDS[kind]?.[1] ?? kind} ${span(seconds)}`).join(", ")],
    ["Waiting for people", people ? span(people) : ""],
    [
      "Merge queue",
      [
        landed ? `${landed} landed` : "",
        pace && landed > 1 ? `${pace.toFixed(1)} an hour` : "",
        runs.length ? `${count(runs.length, "gate run")}, ${red} red` : "",
        gate === null ? "" : `a gate run takes ${span(gate)}`,
        wait === null ? "" : `an entry lands after ${span(wait)}`,
      ]
        .filter(Boolean)
        .join(", "),
    ],
  ].filter(([, words]) => words);
}

/** The time of day at a tick, with seconds if ticks are close. */
const minute = (time, whole) =>
  new Date(time * 1000).toLocaleTimeString(undefined, {
    hour: "2-digit",
    minute: "2-digit",
    hour12: false,
    ...(whole < 60 * TICKS ? { second: "2-digit" } : {}),
  });

const headline = made =>
  [
    `${span(made.end - made.begin)} so far`.replace(made.over ? " so far" : "", ""),
    made.estimate
      ? `about ${span(made.estimate.seconds)} left for ${count(made.estimate.nodes, "node")}, ` +
        `from the times of ${made.estimate.sample} finished, without waits for people`
      : "",
  ]
    .filter(Boolean)
    .join("; ");
