// Page of a run: its state, and the panel that draws each part of it. There is one state, changed by events only; a panel
// is drawn at most once a frame, and only when its part changed.

import { act, get, part } from "./api.js";
import { costsPanel } from "./costs.js";
import { desktopNotices } from "./desktop.js";
import { detailPanel } from "./detail.js";
import { el, set } from "./dom.js";
import { noSuchRun } from "./empty_home.js";
import { ganttPanel } from "./gantt.js";
import { graphPanel } from "./graph.js";
import { runHead } from "./head.js";
import { announce, attempt, link, tab, toast } from "./notice.js";
import { queuePanel } from "./queue.js";
import { railPanel } from "./rail.js";
import { fromSnapshot, patched, waiting } from "./state.js";
import { follow } from "./stream.js";
import { timelinePanel } from "./timeline.js";
import { viewSwitch } from "./view_switch.js";
import { waitsPanel } from "./waits.js";
import { ages } from "./time.js";

const IMPORTANT = new Set(["death", "respawn", "parked", "failed", "landed", "asks", "run", "conflict", "rejected"]);

/** Build the page into `main`, or that of the home if the address names no run; its shortcuts. */
export async function begin(main) {
  const address = new URLSearchParams(location.search);
  const run = address.get("run");
  if (!run) return (await import("./home_page.js")).begin(main);
  return new Run(main, run, address.get("node"), address.get("tab")).shortcuts();
}

class Run {
  constructor(main, run, node, tab) {
    this.main = main;
    this.run = run;
    this.state = null;
    this.runs = null;
    this.gone = "";
    this.dirty = new Set();
    this.nodes = new Set();
    this.followed = {};
    this.wanted = node;
    this.tab = tab === "changes" ? tab : undefined;
    const at = `runs/${part(run)}`;
    this.act = (path, data, control) => attempt(control, () => act(path ? `${at}/${path}` : at, data));
    const choose = (name, tab) => this.open(name, tab);
    this.head = runHead(document.getElementById("run-head"), run, this.act);
    this.desktop = desktopNotices(document.getElementById("notify"), run, choose);
    this.graph = graphPanel(choose);
    this.gantt = ganttPanel(choose, () => get(`${at}/timeline`));
    const views = viewSwitch([["graph", "Pipeline", on => { this.graph.section.hidden = !on; }], ["time", "Time and cost", on => this.gantt.reveal(on)]]);
    this.detail = detailPanel(document.getElementById("detail"), run, this.act, () => this.open(null));
    this.parts = {
      waits: waitsPanel(choose, this.act), rail: railPanel(choose), queue: queuePanel(choose, this.act),
      timeline: timelinePanel(choose, (list, wanted) => get(`${at}/history/${list}?${new URLSearchParams(Object.entries(wanted).filter(([, value]) => value !== undefined))}`), run), costs: costsPanel(choose),
    };
    const { waits, rail, queue, timeline, costs } = this.parts;
    main.className = "run-page";
    main.append(rail.section, el("div", { class: "middle" }, views, this.graph.section, this.gantt.section, timeline.section),
      el("div", { class: "side" }, waits.section, queue.section, costs.section));
    set(document.querySelector(".skip"), "href", "#waits-title");
    this.stream = follow(run, {
      snapshot: snapshot => this.begun(snapshot), change: change => this.changed(change),
      beat: beat => this.beaten(beat), gone: gone => this.ended(gone), runs: list => this.listed(list), link,
    });
    window.addEventListener("popstate", () => this.show(new URLSearchParams(location.search).get("node")));
    window.addEventListener("pagehide", () => this.stream.close());
    window.addEventListener("pageshow", event => event.persisted && location.reload());
    ages(main, document.getElementById("detail"));
  }

  /** Take a new list of runs. */
  listed({ runs }) {
    if (this.gone && runs.some(one => one.run === this.run)) return location.reload(); // another run has its name
    const known = new Set(this.runs?.map(one => one.run));
    const young = this.runs ? runs.filter(one => !known.has(one.run)) : [];
    if (young.length) toast(young.length === 1 ? `Run ${young[0].run} started; it is in the list of runs` : `${young.length} runs started`);
    this.runs = runs;
    if (this.gone && !this.state) return noSuchRun(this.main, this.gone, runs);
    this.head.list(runs);
    this.parts.waits.elsewhere(runs.filter(one => one.run !== this.run && one.gates));
  }

  /** Handle that the run does not exist (any more). What is shown of it stays. */
  ended({ why }) {
    this.gone = why;
    if (this.state) toast(why, true);
    else noSuchRun(this.main, why, this.runs ?? []);
  }

  begun(snapshot) {
    this.state = fromSnapshot(snapshot);
    this.nodes = null;
    if (snapshot.missed) announce("Events were missed; this is the current state.");
    this.soon(new Set(["all"]));
  }

  changed(change) {
    if (!this.state) return;
    this.patch(change.patch);
    if (IMPORTANT.has(change.type) && change.text) announce(change.text);
    this.detail.happened(change);
  }

  beaten(beat) {
    if (this.state) this.patch(beat);
  }

  patch(patch) {
    const { state, changed } = patched(this.state, patch);
    this.state = state;
    Object.assign(this.followed, patch?.followed);
    if (this.nodes && patch?.nodes) Object.keys(patch.nodes).forEach(name => this.nodes.add(name));
    this.soon(changed);
  }

  soon(changed) {
    if (!this.dirty.size) requestAnimationFrame(() => this.draw());
    changed.forEach(name => this.dirty.add(name));
  }

  draw() {
    const { state, dirty, nodes, followed } = this;
    this.dirty = new Set();
    this.nodes = new Set();
    this.followed = {};
    const touched = (...names) => dirty.has("all") || names.some(name => dirty.has(name));
    const waits = waiting(state);
    this.head.show(state, waits.length);
    if (touched("nodes", "gates", "waits", "hint", "problems")) this.parts.waits.show(state, waits);
    if (touched("nodes", "dot", "gates", "followed")) this.graph.show(state, dirty.has("gates") ? null : nodes, followed);
    if (touched("nodes", "layers", "gates")) this.parts.rail.show(state);
    if (touched("queue", "timeline")) this.parts.queue.show(state);
    if (touched("timeline", "signals", "queue")) this.parts.timeline.show(state);
    if (touched("costs")) this.parts.costs.show(state);
    if (touched("status", "timeline", "queue", "costs")) this.gantt.show();
    if (touched("notices")) this.desktop.show(state.notices);
    this.detail.show(state);
    tab(state.run, waits.length);
    if (this.wanted) {
      this.show(this.wanted, this.tab);
      this.wanted = null;
    }
  }

  /** Show a node, or none, and put it into the address. */
  open(name, tab) {
    const address = new URLSearchParams(location.search);
    address.set("run", this.run);
    if (name) address.set("node", name);
    else address.delete("node");
    if (name && tab) address.set("tab", tab);
    else address.delete("tab");
    history.pushState(null, "", `/?${address}`);
    this.show(name, tab);
  }

  show(name, tab) {
    const known = name && this.state?.nodes[name] ? name : null;
    this.graph.select(known);
    this.detail.open(known, this.state, tab);
  }

  shortcuts() {
    const to = id => () => {
      const heading = document.getElementById(`${id}-title`);
      heading.scrollIntoView({ block: "nearest" });
      const section = heading.closest("section");
      (section.querySelector(".body button") ?? heading).focus(); // a node's name: nothing is decided by w and Enter
    };
    return [
      ["w", "go to what waits for you", to("waits")], ["g", "go to the graph", () => this.graph.focus()],
      ["n", "go to the table of nodes", () => this.graph.table()], ["/", "find a node", () => this.graph.search()],
      ["a", "go to the crew", to("rail")], ["m", "go to the merge queue", to("queue")], ["t", "go to what happened", to("story")],
      ["c", "go to the chat", () => { location.href = "/chat"; }],
      ["Escape", "close the node", () => this.detail.opened() && this.open(null)],
    ];
  }
}
