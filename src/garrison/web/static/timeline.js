// Panel of what happened: deaths and restarts, landings, failures; and the signals between the layers.

import { el, empty, keyed, panel, set } from "./dom.js";
import { clock } from "./words.js";

const KINDS = {
  run: ["▸", "run"], landed: ["✓", "landed"], failed: ["✕", "failed"], skipped: ["–", "skipped"], unchanged: ["=", "no change"], attempt: ["↻", "retry"],
  death: ["✕", "died"], respawn: ["↻", "restarted"], parked: ["‖", "parked"], unparked: ["▸", "unparked"], healed: ["↻", "healed"],
  asks: ["?", "asks"], enqueued: ["◕", "queued"], withdrawn: ["–", "withdrawn"], conflict: ["✕", "conflict"],
  rejected: ["✕", "gate red"], held: ["‖", "held"], rescued: ["✓", "snapshot saved"], paused: ["‖", "queue paused"], resumed: ["▸", "queue resumed"],
};
const LOOKS = { "✕": "failed", "↻": "back", "‖": "parked", "✓": "landed", "▸": "working", "?": "asking", "◕": "landing", "–": "skipped", "=": "unchanged" };

/** The panel; `choose` opens a node. */
export function timelinePanel(choose) {
  const tabs = el("div", { class: "tabs", role: "tablist", "aria-label": "What to list" });
  const { section, body } = panel("story", "What happened", tabs);
  const lists = {
    timeline: el("ol", { class: "story", id: "list-timeline", role: "tabpanel", "aria-labelledby": "tab-timeline" }),
    signals: el("ol", { class: "story", id: "list-signals", role: "tabpanel", "aria-labelledby": "tab-signals", hidden: true }),
  };
  const nothing = empty("Nothing has happened yet.");
  const tab = (name, label) => el("button", {
    type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `list-${name}`, class: "quiet",
    onclick: () => showTab(name), onkeydown: event => {
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
      const other = name === "timeline" ? "signals" : "timeline";
      showTab(other);
      document.getElementById(`tab-${other}`).focus();
    },
  }, label);
  tabs.append(tab("timeline", "Timeline"), tab("signals", "Signals"));
  body.append(nothing, lists.timeline, lists.signals);
  let chosen = "timeline", latest = null, stop = null;

  function showTab(name) {
    chosen = name;
    for (const one of tabs.children) {
      set(one, "aria-selected", String(one.id === `tab-${name}`));
      set(one, "tabindex", one.id === `tab-${name}` ? "0" : "-1");
    }
    if (latest) show(latest);
  }

  function show(state) {
    latest = state;
    const lines = state[chosen];
    nothing.hidden = lines.length > 0;
    lists.timeline.hidden = chosen !== "timeline" || !lines.length;
    lists.signals.hidden = chosen !== "signals" || !lines.length;
    keyed(lists[chosen], [...lines].reverse(), line => line.id, chosen === "timeline" ? event : signal);
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

  showTab("timeline");
  return { section, show };
}
