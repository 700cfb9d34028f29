// Page of a run: its state, and the panels that draw it. There is one state, changed by events only; the page is drawn from
// it at most once a frame, and a panel only when a part that it shows has changed.

import { inAddress, keepInAddress } from "./address.js";
import { act, get, part } from "./api.js";
import { Costs } from "./costs.js";
import { desktopNotices } from "./desktop.js";
import { NoSuchRun } from "./empty_home.js";
import { Graph } from "./graph.js";
import { RunHead } from "./head.js";
import { showNotice } from "./notice_target.js";
import { announce, attempt, full, link, skipTo, tab, toast } from "./notice.js";
import { PullRequest } from "./pull_request.js";
import { Queue } from "./queue.js";
import { Rail } from "./rail.js";
import { fromSnapshot, patched, waiting } from "./state.js";
import { follow } from "./stream.js";
import { Tabs } from "./tabs.js";
import { Timeline } from "./timeline.js";
import { createRef, html, later, render, useState } from "./view.js";
import { Waits } from "./waits.js";
import { NODE_TABS } from "./words.js";

// Neither is on the first screen: with them, a third of all modules would come before the first data.
const Detail = later(async () => (await import("./detail.js")).Detail);
const Gantt = later(async () => (await import("./gantt.js")).Gantt);

const IMPORTANT = new Set(["death", "respawn", "parked", "failed", "landed", "asks", "run", "conflict", "rejected"]);
const VIEWS = [
  ["graph", "Pipeline", "graph"],
  ["time", "Time and cost", "gantt"],
]; // in the same place; the first one unless the address names another
const VIEW = "view"; // in the address
const SKELETON_AFTER = 150; // milliseconds without data: until then, it would only flash
const DETAIL_AFTER = 300; // milliseconds after the first data: loaded before somebody opens a node
const PLACES = ["attempt", "comment", "at"]; // in the address: of one node

/**
 * Build the page into `main`, or the home page if the address names no run.
 * @returns {Promise<Array<[string, string, (event?: KeyboardEvent) => void]>>} its shortcuts
 */
export async function begin(main) {
  const address = new URLSearchParams(location.search);
  const run = address.get("run");
  if (!run) return (await import("./home_page.js")).begin(main);
  return new Run(main, run, address).shortcuts();
}

class Run {
  constructor(main, run, address) {
    this.main = main;
    this.run = run;
    this.state = null; // not known yet
    this.runs = null;
    this.elsewhere = []; // other runs in which something waits
    this.gone = "";
    this.wanted = address.get("node"); // opened as soon as it is known
    this.node = null; // the one that is open
    this.detailed = false; // one was
    this.tab = tabOf(address);
    this.opened = 0;
    this.happened = 0;
    this.due = false;
    this.graph = createRef();
    const at = `runs/${part(run)}`;
    this.act = (path, data) => attempt(() => act(path ? `${at}/${path}` : at, data));
    this.load = () => get(`${at}/timeline`);
    this.read = (list, wanted) =>
      get(
        `${at}/history/${list}?${new URLSearchParams(Object.entries(wanted).filter(([, value]) => value !== undefined))}`,
      );
    this.choose = (name, tab) => this.open(name, tab);
    this.close = () => this.open(null);
    this.desktop = desktopNotices(document.getElementById("notify"), run, this.choose);
    main.className = "run-page";
    if (this.wanted) Detail.load();
    skipTo("#waits-title");
    setTimeout(() => this.state || this.draw(), SKELETON_AFTER);
    this.stream = follow(run, {
      snapshot: snapshot => this.begun(snapshot),
      change: change => this.changed(change),
      beat: beat => this.beaten(beat),
      gone: gone => this.ended(gone),
      runs: list => this.listed(list),
      link,
      full,
    });
    window.addEventListener("popstate", () => {
      const now = new URLSearchParams(location.search);
      this.show(now.get("node"), tabOf(now));
    });
    window.addEventListener("pagehide", () => this.stream.close());
    window.addEventListener("pageshow", event => event.persisted && location.reload());
  }

  /** Take a new list of runs. */
  listed({ runs }) {
    if (this.gone && runs.some(one => one.run === this.run)) return location.reload(); // another run has its name
    const known = new Set(this.runs?.map(one => one.run));
    const young = this.runs ? runs.filter(one => !known.has(one.run)) : [];
    if (young.length)
      toast(
        young.length === 1 ? `Run ${young[0].run} started; it is in the list of runs` : `${young.length} runs started`,
      );
    this.runs = runs;
    this.elsewhere = runs.filter(one => one.run !== this.run && one.gates);
    this.soon();
  }

  /** The run does not, or no longer, exist. What is shown of it stays. */
  ended({ why }) {
    this.gone = why;
    if (this.state) toast(why, true);
    this.soon();
  }

  begun(snapshot) {
    const first = !this.state;
    this.state = { write: this.state?.write, ...fromSnapshot(snapshot) }; // a later one has no data about the client
    if (snapshot.missed) announce("Events were missed; this is the current state.");
    this.happened += 1;
    if (first)
      this.draw(); // without waiting for a frame
    else this.soon();
    setTimeout(Detail.load, DETAIL_AFTER);
    void attempt(() => showNotice(this.run, this.state));
  }

  changed(change) {
    if (!this.state) return;
    this.patch(change.patch);
    if (IMPORTANT.has(change.type) && change.text) announce(change.text);
    if (this.node !== null && (change.node === this.node || change.patch?.nodes?.[this.node])) this.happened += 1;
  }

  beaten(beat) {
    if (this.state) this.patch(beat);
  }

  patch(patch) {
    this.state = patched(this.state, patch);
    this.soon();
  }

  soon() {
    if (!this.due) requestAnimationFrame(() => this.draw());
    this.due = true;
  }

  draw() {
    this.due = false;
    const { run, state, runs, act } = this;
    if (this.gone && !state) {
      this.main.className = "";
      skipTo("#main", "Skip to the content");
      render(html`<${NoSuchRun} why=${this.gone} runs=${runs ?? []} />`, this.main);
      render(null, document.getElementById("run-head"));
      return;
    }
    if (state && this.wanted) {
      const wanted = this.wanted;
      this.wanted = null;
      this.select(wanted, this.tab);
    }
    const waits = state ? waiting(state).length : 0;
    render(
      html`<${RunHead} run=${run} state=${state} waits=${waits} runs=${runs} act=${act} />`,
      document.getElementById("run-head"),
    );
    render(html`<${Panels} page=${this} state=${state} />`, this.main);
    const place = document.getElementById("detail");
    this.detailed ||= this.node !== null;
    if (this.detailed)
      render(
        html`<${Detail}
          place=${place}
          run=${run}
          node=${this.node}
          tab=${this.tab}
          opened=${this.opened}
          state=${state}
          happened=${this.happened}
          act=${act}
          close=${this.close}
        />`,
        place,
      );
    document.querySelector('[data-page="chat"]')?.setAttribute("href", this.chat);
    if (!state) return;
    if (state.notices !== this.told) this.desktop.show((this.told = state.notices));
    tab(state.run, waits);
  }

  /** Show a node, or none, and put it into the address. */
  open(name, tab) {
    const address = new URLSearchParams(location.search);
    address.set("run", this.run);
    if (name) address.set("node", name);
    else address.delete("node");
    for (const place of PLACES) address.delete(place);
    if (name && tab) address.set("tab", tab);
    else address.delete("tab");
    history.pushState(null, "", `/?${address}`);
    this.show(name, tab);
  }

  show(name, tab) {
    this.select(name, tab);
    this.draw();
  }

  select(name, tab) {
    this.node = name && this.state?.nodes[name] ? name : null;
    this.tab = tab;
    this.opened += 1;
  }

  /** The address of the chat, with the place from which it is opened. */
  get chat() {
    return `/chat?${new URLSearchParams({ run: this.run, ...(this.node ? { node: this.node } : {}) })}`;
  }

  /** @returns {Array<[string, string, (event?: KeyboardEvent) => void]>} keys, what they do, the doing */
  shortcuts() {
    const to = id => () => {
      const heading = document.getElementById(`${id}-title`);
      heading.scrollIntoView({ block: "nearest" });
      const section = heading.closest("section");
      const first = /** @type {HTMLElement|null} */ (section.querySelector(".body button"));
      (first ?? heading).focus(); // a node's name: nothing is decided by w and Enter
    };
    return [
      ["w", "go to what waits for you", to("waits")],
      ["g", "go to the graph", () => this.graph.current.focus()],
      ["n", "go to the table of nodes", () => this.graph.current.table()],
      ["/", "find a node", () => this.graph.current.search()],
      ["a", "go to the crew", to("rail")],
      ["m", "go to the merge queue", to("queue")],
      ["t", "go to what happened", to("story")],
      [
        "c",
        "go to the chat",
        () => {
          location.href = this.chat;
        },
      ],
      ["Escape", "close the node", () => this.node && this.open(null)],
    ];
  }
}

/** The panels in their places. */
function Panels({ page: { run, node, elsewhere, graph, act, choose, load, read }, state }) {
  const [view, turn] = useState(viewOfAddress);
  const [timed, time] = useState(view === "time");
  const change = name => {
    turn(name);
    if (name === "time") time(true);
    keep(name);
  };
  return html`<${Rail} state=${state} choose=${choose} />
    <div class="middle">
      <${Tabs}
        class="views"
        prefix="view"
        label="What to show of the run"
        tabs=${VIEWS}
        chosen=${view}
        choose=${change}
      />
      <${Graph} handle=${graph} hidden=${view !== "graph"} state=${state} selected=${node} choose=${choose} />
      ${timed && html`<${Gantt} hidden=${view !== "time"} state=${state} choose=${choose} load=${load} />`}
      <${Timeline} state=${state} run=${run} choose=${choose} read=${read} />
    </div>
    <div class="side">
      <${Waits} state=${state} elsewhere=${elsewhere} choose=${choose} act=${act} />
      <${PullRequest} state=${state} choose=${choose} act=${act} />
      <${Queue} state=${state} choose=${choose} act=${act} /><${Costs} run=${run} state=${state} choose=${choose} />
    </div>`;
}

/** The tab that an address names; undefined for none. */
function tabOf(address) {
  const wanted = address.get("tab");
  return NODE_TABS.some(([name]) => name === wanted) ? wanted : undefined;
}

function viewOfAddress() {
  const wanted = inAddress(VIEW);
  return VIEWS.some(([name]) => name === wanted) ? wanted : VIEWS[0][0];
}

/** Keep the view in the address, so that it can be sent. */
const keep = view => keepInAddress({ [VIEW]: view === VIEWS[0][0] ? null : view });
