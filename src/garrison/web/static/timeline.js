// Panel of what happened: deaths and restarts, landings, failures; the signals between the layers; the merge queue. The
// latest is live, all that was before comes in pages.

import { el, empty, keyed, panel, say, set } from "./dom.js";
import { historyPager } from "./history_pager.js";
import { clock, zone } from "./words.js";

const KINDS = {
  run: ["▸", "run"], landed: ["✓", "landed"], failed: ["✕", "failed"], skipped: ["–", "skipped"], unchanged: ["=", "no change"], attempt: ["↻", "retry"],
  death: ["✕", "died"], respawn: ["↻", "restarted"], parked: ["‖", "parked"], unparked: ["▸", "unparked"], healed: ["↻", "healed"],
  asks: ["?", "asks"], enqueued: ["◕", "queued"], withdrawn: ["–", "withdrawn"], conflict: ["✕", "conflict"],
  enq: ["◕", "queued"], test: ["▸", "gate runs"], verdict: ["·", "gate ended"], landing: ["▸", "landing"], state: ["·", "changed"], cancel: ["–", "cancelled"],
  rejected: ["✕", "gate red"], held: ["‖", "held"], rescued: ["✓", "snapshot saved"], paused: ["‖", "queue paused"], resumed: ["▸", "queue resumed"],
};
const LOOKS = { "✕": "failed", "↻": "back", "‖": "parked", "✓": "landed", "▸": "working", "?": "asking", "◕": "landing", "–": "skipped", "=": "unchanged" };

const TABS = [["timeline", "Timeline"], ["signals", "Signals"], ["queue", "Queue"]];

/** The panel; `choose` opens a node, `read(list, query)` requests a page of a list. */
export function timelinePanel(choose, read, run) {
  const tabs = el("div", { class: "tabs", role: "tablist", "aria-label": "What to list" });
  const pager = historyPager(query => read(chosen, query), page => { paged = page; draw(); }, () => `${run}-${chosen}.txt`, lineText);
  const { section, body } = panel("story", "What happened", tabs);
  pager.element.append(el("span", { class: "zone" }, `Times: ${zone()}`));
  section.insertBefore(pager.element, body);
  const lists = Object.fromEntries(TABS.map(([name]) => [name, el("ol", { class: "story", id: `list-${name}` })]));
  const panels = Object.fromEntries(TABS.map(([name]) => [name,
    el("div", { id: `panel-${name}`, role: "tabpanel", "aria-labelledby": `tab-${name}`, hidden: true }, lists[name])]));
  const nothing = empty("Nothing has happened yet.");
  tabs.append(...TABS.map(([name, label], at) => el("button", {
    type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `panel-${name}`, class: "quiet",
    onclick: () => showTab(name), onkeydown: event => {
      const way = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!way) return;
      const [other] = TABS[(at + way + TABS.length) % TABS.length];
      showTab(other);
      document.getElementById(`tab-${other}`).focus();
    },
  }, label)));
  body.append(nothing, ...Object.values(panels));
  let chosen = "timeline", latest = null, stop = null, paged = null;

  function showTab(name) {
    chosen = name;
    for (const one of tabs.children) {
      set(one, "aria-selected", String(one.id === `tab-${name}`));
      set(one, "tabindex", one.id === `tab-${name}` ? "0" : "-1");
    }
    paged = null;
    pager.reset(name === "queue"); // the event stream has the queue as it is, not what it was
    draw();
  }

  /** Show a state: its latest entries, unless a page of the history is shown. */
  function show(state) {
    latest = state;
    if (!paged) draw();
    else pager.grown();
  }

  function draw() {
    const shown = paged?.entries ?? (chosen === "queue" ? [] : latest?.[chosen] ?? []);
    say(nothing, pager.searches() ? "Nothing matches." : chosen === "queue" ? "Nothing was queued yet." : "Nothing has happened yet.");
    nothing.hidden = shown.length > 0;
    for (const [name] of TABS) panels[name].hidden = chosen !== name || !shown.length;
    keyed(lists[chosen], [...shown].reverse(), line => line.id, chosen === "signals" ? signal : event);
    if (stop !== document.activeElement || !stop?.isConnected) roving(lists[chosen].querySelector("button"));
  }

  /** Keep one line of the list in the tab order; arrows move to the others, so that Tab leaves the list. */
  function roving(button) {
    if (stop === button) return;
    if (stop) set(stop, "tabindex", "-1");
    stop = button;
    if (stop) set(stop, "tabindex", "0");
  }

  body.addEventListener("keydown", event => {
    const way = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!way || event.target !== stop) return;
    const buttons = [...lists[chosen].querySelectorAll("button")];
    const next = buttons[buttons.indexOf(stop) + way];
    event.preventDefault();
    if (!next) return;
    roving(next);
    next.focus();
  });

  function event(line) {
    const [sign, word] = KINDS[line.kind] ?? ["·", line.kind];
    return el("li", { class: `line s-${LOOKS[sign] ?? "waiting"}` }, time(line), el("span", { class: "sign", "aria-hidden": "true" }, sign),
      el("span", { class: "kind" }, word), who(line), el("span", { class: "text", title: line.text }, plain(line.text ?? "")));
  }

  function signal(line) {
    return el("li", { class: "line s-waiting" }, time(line), el("span", { class: "sign", "aria-hidden": "true" }, "→"),
      el("span", { class: "kind mono" }, line.type), who(line),
      el("span", { class: "text", title: line.text }, [[line.source, line.target].filter(Boolean).join(" → "), line.text].filter(Boolean).join(" · ")));
  }

  /** Without what the line shows already: the signal that reported it, and that it is about a node. */
  const plain = text => text.replace(/^[A-Z_]+ from \S+: /, "").replace(/^node \w+, (attempt \d+):? ?/, "$1 ").trim();

  const time = line => el("time", { datetime: typeof line.at === "string" ? line.at : null }, clock(line.at));
  const who = line => line.node ? el("button", { type: "button", class: "link-like name", tabindex: "-1", onclick: event => {
    roving(event.currentTarget);
    choose(line.node);
  } }, line.node) : el("span", {});

  /** A line as text, for copies. */
  function lineText(line) {
    return [line.at, line.kind ?? line.type, line.node, [line.source, line.target].filter(Boolean).join(" → "), line.text].filter(Boolean).join("\t");
  }

  showTab("timeline");
  return { section, show };
}
