// Panel of what happened: deaths and restarts, landings, failures; the signals between the layers; the merge queue. The
// latest is live, everything earlier comes in pages.

import { HistoryPager } from "./history_pager.js";
import { Tabs, TabPanel } from "./tabs.js";
import { Empty, html, memo, Panel, reading, Skeleton, useRef, useState } from "./view.js";
import { clock, zone } from "./words.js";

const KINDS = {
  run: ["▸", "run"],
  landed: ["✓", "landed"],
  failed: ["✕", "failed"],
  skipped: ["–", "skipped"],
  unchanged: ["=", "no change"],
  kept: ["+", "kept"],
  attempt: ["↻", "retry"],
  death: ["✕", "died"],
  respawn: ["↻", "restarted"],
  parked: ["‖", "parked"],
  unparked: ["▸", "unparked"],
  healed: ["↻", "healed"],
  asks: ["?", "asks"],
  enqueued: ["◕", "queued"],
  withdrawn: ["–", "withdrawn"],
  conflict: ["✕", "conflict"],
  enq: ["◕", "queued"],
  test: ["▸", "gate runs"],
  verdict: ["·", "gate ended"],
  landing: ["▸", "landing"],
  state: ["·", "changed"],
  cancel: ["–", "cancelled"],
  rejected: ["✕", "rejected"],
  held: ["‖", "held"],
  rescued: ["✓", "snapshot"],
  pull_request: ["▸", "pull request"],
  paused: ["‖", "queue paused"],
  resumed: ["▸", "queue resumed"],
};
const LOOKS = {
  "✕": "failed",
  "↻": "back",
  "‖": "parked",
  "✓": "landed",
  "▸": "working",
  "?": "asking",
  "◕": "landing",
  "–": "skipped",
  "=": "unchanged",
  "+": "kept",
};

const TABS = [
  ["timeline", "Timeline"],
  ["signals", "Signals"],
  ["queue", "Queue"],
];

/** The panel; `choose` opens a node, `read(list, query)` requests a page of a list. */
export const Timeline = reading(["timeline", "signals", "queue"], ({ state, run, choose, read }) => {
  const [chosen, turn] = useState("timeline");
  const [page, show] = useState(null); // null: the live list
  const [sought, search] = useState(false);
  const [everything, all] = useState(false); // also internal steps of garrison
  const live = chosen !== "queue"; // the event stream has the queue as it is, not what it was
  const given = page?.entries ?? (live ? state?.[chosen] : null);
  const entries = everything ? given : given?.filter(line => !line.minor);
  const none = sought ? "Nothing matches." : live ? "Nothing has happened yet." : "Nothing was queued yet.";
  const choices = html`<${Tabs}
    prefix="story"
    label="What to list"
    tabs=${TABS}
    chosen=${chosen}
    choose=${name => {
      turn(name);
      show(null);
    }}
  />`;
  const pager = html`<${HistoryPager}
    key=${chosen}
    live=${live}
    version=${state}
    read=${query => read(chosen, query)}
    show=${show}
    search=${search}
    name="${run}-${chosen}.txt"
    line=${lineText}
    >${
      chosen === "timeline" &&
      html`<label class="all"
        ><input type="checkbox" checked=${everything} onChange=${event => all(event.currentTarget.checked)} /> All
        events</label
      >`
    }<span class="zone">Times: ${zone()}</span><//
  >`;
  return html`<${Panel} id="story" title="What happened" beside=${choices} above=${pager}>
    ${entries ? !entries.length && html`<${Empty}>${none}<//>` : html`<${Skeleton} />`}
    ${TABS.map(
      ([name]) =>
        html`<${TabPanel} key=${name} prefix="story" name=${name} chosen=${entries?.length ? chosen : ""}>
          ${name === chosen && html`<${Lines} name=${name} entries=${entries ?? []} choose=${choose} />`}<//
        >`,
    )}<//
  >`;
});

/** A list, the latest first. One line of it is in the tab order; arrows move to the others, so that Tab leaves the list. */
function Lines({ name, entries, choose }) {
  const list = useRef(null);
  const [held, hold] = useState(null); // the line that has the focus, or had it last
  const lines = [...entries].reverse();
  const known = list.current?.contains(document.activeElement) && lines.some(line => line.id === held && line.node);
  const stop = known ? held : lines.find(line => line.node)?.id;
  const moved = event => {
    const way = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const buttons = [...list.current.querySelectorAll("button")];
    const at = buttons.indexOf(event.target);
    if (!way || at < 0) return;
    event.preventDefault();
    buttons[at + way]?.focus();
  };
  const Line = name === "signals" ? Signal : Happened;
  return html`<ol
    class="story"
    id="list-${name}"
    ref=${list}
    onKeyDown=${moved}
    onFocusIn=${event => hold(event.target.closest("li")?.dataset.key ?? null)}
  >
    ${lines.map(line => html`<${Line} key=${line.id} line=${line} stop=${line.id === stop} choose=${choose} />`)}
  </ol>`;
}

const Happened = memo(({ line, stop, choose }) => {
  const [sign, word] = KINDS[line.kind] ?? ["·", line.kind];
  return html`<li class="line s-${LOOKS[sign] ?? "waiting"}" data-key=${line.id}>
    <${Time} at=${line.at} /><span class="sign" aria-hidden="true">${sign}</span> <span class="kind">${word}</span
    ><${Who} node=${line.node} stop=${stop} choose=${choose} /><span class="text" title=${line.text}
      >${plain(line.text ?? "")}</span
    >
  </li>`;
});

const Signal = memo(
  ({ line, stop, choose }) =>
    html`<li class="line s-waiting" data-key=${line.id}>
      <${Time} at=${line.at} /><span class="sign" aria-hidden="true">→</span> <span class="kind mono">${line.type}</span
      ><${Who} node=${line.node} stop=${stop} choose=${choose} />
      <span class="text" title=${line.text}
        >${[[line.source, line.target].filter(Boolean).join(" → "), line.text].filter(Boolean).join(" · ")}</span
      >
    </li>`,
);

/** Without what the line already shows: its kind, the signal that reported it, and its node. */
const plain = text =>
  text
    .replace(/^[A-Z_]+ from \S+: /, "")
    .replace(/^node [\w ]+, (attempt \d+)/, "$1")
    .replace(/^(?:merge entry \w+: |queued (?=\S+ at )|asks: |parked: )/, "")
    .replace(/ \(reported by [\w-]+\)$/, "")
    .trim();

const Time = ({ at }) => html`<time datetime=${typeof at === "string" ? at : null}>${clock(at)}</time>`;

const Who = ({ node, stop, choose }) =>
  node
    ? html`<button
        type="button"
        class="link-like name"
        tabindex=${stop ? "0" : "-1"}
        title=${node}
        onClick=${() => choose(node)}
      >
        ${node}
      </button>`
    : html`<span />`;

/** A line as text, for copies. */
const lineText = line =>
  [line.at, line.kind ?? line.type, line.node, [line.source, line.target].filter(Boolean).join(" → "), line.text]
    .filter(Boolean)
    .join("\t");
