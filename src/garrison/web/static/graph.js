// Panel of the run's nodes: as a graph, as a table, and in groups if there are many, with a search in each. Graphviz lays
// the graph out in a worker that has a deadline; after it the table is shown instead, with a line that explains why. The
// drawing is Graphviz' own: it is made once and painted by events (graph_drawing.js); the rest is drawn as in every panel.

import { Tool } from "./controls.js";
import { graphDrawing } from "./graph_drawing.js";
import { legibleGraph } from "./legible.js";
import { miniMap } from "./minimap.js";
import { NodeGroups } from "./node_groups.js";
import { NodeTable } from "./node_table.js";
import { shown } from "./state.js";
import { Tabs, TabPanel } from "./tabs.js";
import { Component, createRef, html, Panel, sameDrawing, Skeleton } from "./view.js";
import { nodeLine, signOf } from "./words.js";

const STEP = 1.25;
const SMALLEST = 0.02; // size of a drawing that is shown as a whole
const DEADLINE = 10000; // milliseconds for a layout
const LONGER = 6; // times that, for the user who asks again
const VIEW = "garrison.nodes.view"; // what this browser showed last
const LARGE = 150; // nodes from which a run opens in groups, and its graph is laid out only when it is wanted
const TABS = [
  ["table", "Table"],
  ["graph", "Graph"],
]; // the table first for keys and screen readers
const LARGE_TABS = [["groups", "Groups"], ...TABS];
const PARTS = ["nodes", "dot", "gates", "followed", "status", "next"];
const BUSY = new Set(["working", "asking"]);

/**
 * The panel.
 * @param {Object} props
 * @param {boolean} props.hidden
 * @param {import("./state").State|null} props.state of the run
 * @param {string|null} props.selected the node that is open
 * @param {(a: string) => void} props.choose opens a node
 * @param {{current: Graph}} props.handle gets the panel: its focus(), table() and search() are for shortcuts
 */
export class Graph extends Component {
  constructor(props) {
    super(props);
    this.state = {
      view: null, // the user's choice here
      drawn: false,
      trouble: "",
      found: null,
      sought: null, // the one of them that the search is at
      order: { by: null, down: false },
    };
    this.canvas = createRef();
    this.map = createRef();
    this.input = createRef();
    this.list = createRef();
    this.asked = 0; // number of the layout that is wanted
    this.at = -1; // place among what the search found
    this.reorder = order => this.setState({ order });
    this.both = null; // the layouts: down and right
    this.way = "";
  }

  componentDidMount() {
    this.props.handle.current = this;
    const place = this.canvas.current;
    this.drawing = graphDrawing(place, miniMap(this.map.current, place), name => this.props.choose(name));
    this.resized = new ResizeObserver(() => this.arrange());
    this.resized.observe(place.parentElement);
    this.worker = this.start(); // Graphviz starts while the first data is on its way
    this.follow({});
  }

  componentWillUnmount() {
    this.resized.disconnect();
    this.stop();
  }

  shouldComponentUpdate(next, state) {
    return state !== this.state || !sameDrawing(PARTS, this.props, next);
  }

  componentDidUpdate(before, old) {
    this.follow(before);
    if (old.view !== this.state.view || before.hidden !== this.props.hidden) {
      this.draw();
      this.arrange();
    }
    if (old.found !== this.state.found) this.drawing.search(this.state.found);
  }

  /** Paint the differences from the last drawing. */
  follow(before) {
    const { state, selected } = this.props;
    if (before.selected !== selected) this.drawing.select(selected ?? null);
    if (!state || state === before.state) return;
    this.draw();
    const old = before.state;
    const all = !old || old.gates !== state.gates || old.status !== state.status || old.next !== state.next;
    this.drawing.show(
      state,
      all ? null : Object.keys(state.nodes).filter(name => state.nodes[name] !== old.nodes[name]),
    );
    if (old && old.followed !== state.followed) this.drawing.ways(state.followed ?? {});
  }

  // ---- layout

  get large() {
    return Object.keys(this.props.state?.nodes ?? {}).length > LARGE;
  }

  /** The view: as chosen here, else in this browser, else by the number of nodes. */
  get view() {
    const kept = this.state.view ?? localStorage.getItem(this.large ? `${VIEW}.large` : VIEW);
    const known = (this.large ? LARGE_TABS : TABS).some(([name]) => name === kept);
    return known ? kept : this.large ? "groups" : "graph";
  }

  /** Have the graph laid out, unless it is; a large one only if it is visible. */
  draw() {
    const { state } = this.props;
    if (state && state.dot !== this.dot && (!this.large || this.view === "graph")) this.layOut(state.dot);
  }

  layOut(dot, deadline = DEADLINE) {
    this.dot = dot;
    this.both = null;
    this.worker ??= this.start();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.failed(`it was not laid out within ${deadline / 1000} s`), deadline);
    this.worker.postMessage({ id: ++this.asked, dot: legibleGraph(dot), both: !this.large });
  }

  start() {
    const made = new Worker("/static/graph_worker.js", { type: "module" });
    made.addEventListener("message", ({ data }) => {
      if (data.id !== this.asked) return;
      clearTimeout(this.timer);
      if (data.problem) return this.failed(data.problem);
      this.both = data;
      this.way = "";
      this.arrange();
    });
    made.addEventListener("error", () => this.failed("Graphviz did not start in this browser"));
    return made;
  }

  stop() {
    clearTimeout(this.timer);
    this.worker?.terminate();
    this.worker = null;
  }

  /** Show the table instead. */
  failed(why) {
    this.stop();
    this.both = null;
    this.drawing.clear();
    this.setState({ drawn: false, trouble: why, view: "table" });
  }

  longer() {
    this.setState({ trouble: "", view: "graph" });
    this.layOut(this.dot, DEADLINE * LONGER);
  }

  /** Choose the direction that the view shows larger, and draw it if it is not shown yet. */
  arrange() {
    if (!this.both || !this.canvas.current?.clientWidth) return;
    const better =
      this.drawing.room(sizeOf(this.both.right)) > this.drawing.room(sizeOf(this.both.down)) * 1.05 ? "right" : "down";
    if (better === this.way) return this.drawing.refit();
    this.way = better;
    this.drawing.put(this.both[better]);
    this.setState({ drawn: true, trouble: "" });
    if (this.state.found) this.drawing.search(this.state.found);
  }

  // ---- what is shown

  /** Show graph or table; `kept`: in this browser from now on. `then` is called when it is shown. */
  turn(view, kept = false, then = undefined) {
    if (kept) localStorage.setItem(this.large ? `${VIEW}.large` : VIEW, view);
    this.setState({ view }, then);
  }

  focus() {
    this.turn("graph", false, () => this.drawing.focus());
  }
  table() {
    this.turn("table", false, () => this.toList());
  }
  search() {
    this.input.current.focus();
  }
  toList() {
    ["tbody button", "thead button"]
      .map(which => this.list.current.querySelector(which))
      .find(Boolean)
      ?.focus();
  }

  // ---- search

  seek() {
    const { state } = this.props;
    const words = this.input.current.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const hit = node =>
      words.every(word =>
        [node.node, node.label, node.agent, shown(state, node)].some(text =>
          String(text ?? "")
            .toLowerCase()
            .includes(word),
        ),
      );
    const found =
      words.length && state
        ? new Set(
            Object.values(state.nodes)
              .filter(hit)
              .map(node => node.node),
          )
        : null;
    this.at = -1;
    this.setState({ found, sought: null }, () => {
      if (this.view !== "table" && found?.size) this.next(1);
    });
  }

  next(step) {
    const names = [...(this.state.found ?? [])];
    if (!names.length) return;
    this.at = (this.at + step + names.length) % names.length;
    if (this.view === "graph") this.drawing.search(this.state.found, names[this.at]);
    else if (this.view === "groups") this.setState({ sought: names[this.at] });
    else this.toList();
  }

  pressed(event) {
    if (event.key === "Enter" && this.state.found?.size === 1) this.props.choose([...this.state.found][0]);
    else if (event.key === "Enter") {
      event.preventDefault();
      this.next(event.shiftKey ? -1 : 1);
    } else if (event.key === "Escape" && this.input.current.value) {
      event.stopPropagation();
      this.input.current.value = "";
      this.seek();
    }
  }

  groups() {
    const { state, selected, choose } = this.props;
    const { found, sought } = this.state;
    return html`<${NodeGroups} state=${state} found=${found} at=${sought} selected=${selected} choose=${choose} />`;
  }

  render({ hidden, state, choose }, { drawn, trouble, found, order }) {
    const { view, large } = this;
    const nodes = state ? Object.values(state.nodes) : [];
    const active = nodes.filter(node => BUSY.has(shown(state, node))).length;
    const nested = drawn && view === "graph" ? nodes.filter(node => !this.drawing.has(node.node)) : []; // they have no place in the drawing
    const beside = html`<${Tabs}
        prefix="nodes"
        label="How to show the nodes"
        tabs=${large ? LARGE_TABS : TABS}
        chosen=${view}
        choose=${name => this.turn(name, true)}
      />
      <div class="find" role="search" aria-label="Nodes">
        <input
          type="search"
          ref=${this.input}
          placeholder="Find a node"
          aria-label="Find a node"
          onInput=${() => this.seek()}
          onKeyDown=${event => this.pressed(event)}
        /><span class="number" role="status">${found && `${found.size} of ${nodes.length}`}</span>
      </div>
      <div class="tools" role="group" aria-label="Size of the drawing" hidden=${view !== "graph"}>
        <button
          type="button"
          class="quiet"
          title="Go to the next node that is working or asks you"
          disabled=${!active}
          onClick=${() => this.drawing.toBusy()}
        >
          ${active ? `Active (${active})` : "Active"}
        </button>
        <${Tool} label="Smaller" does=${() => this.drawing.zoom(1 / STEP)}>−<//
        ><${Tool} label="Larger" does=${() => this.drawing.zoom(STEP)}>+<//>
        <${Tool} label="Fit: show the whole graph" does=${() => this.drawing.fit(SMALLEST)}>Fit<//>
      </div>`;
    return html`<${Panel} id="graph" title="Pipeline" hidden=${hidden} beside=${beside}>
      ${
        trouble &&
        html`<p class="note" role="status">
          The graph is not drawn: ${trouble}. The table has all of its nodes. ${" "}
          <button type="button" class="quiet" onClick=${() => this.longer()}>Try longer</button>
        </p>`
      }
      ${
        large &&
        html`<${TabPanel} prefix="nodes" name="groups" chosen=${view} class="list">
          ${view === "groups" && this.groups()}<//
        >`
      }
      <${TabPanel} prefix="nodes" name="table" chosen=${view} class="list"
        ><div ref=${this.list}>
          ${
            view === "table" &&
            (state
              ? html`<${NodeTable}
                  state=${state}
                  found=${found}
                  order=${order}
                  reorder=${this.reorder}
                  choose=${choose}
                />`
              : html`<${Skeleton} lines=${6} />`)
          }
        </div><//
      >
      <${TabPanel} prefix="nodes" name="graph" chosen=${view} class="view"
        ><div class="canvas" ref=${this.canvas} />
        <div class="minimap" aria-hidden="true" hidden ref=${this.map}>
          <canvas />
          <div class="seen" />
        </div>
        ${!drawn && !trouble && html`<p class="empty">Drawing the graph…</p>`}<//
      >
      <ul class="inner" aria-label="Nodes of nested pipelines" hidden=${!nested.length}>
        ${nested.map(node => html`<${Nested} key=${node.node} node=${node} look=${shown(state, node)} choose=${choose} />`)}
      </ul><//
    >`;
  }
}

const Nested = ({ node, look, choose }) =>
  html`<li>
    <button type="button" class="chip s-${look}" aria-label=${nodeLine(node, look)} onClick=${() => choose(node.node)}>
      ${signOf(look)} ${node.node}
    </button>
  </li>`;

function sizeOf(svg) {
  const [, width, height] = /viewBox="[-\d.]+ [-\d.]+ ([\d.]+) ([\d.]+)"/.exec(svg) ?? [0, 100, 100];
  return [Number(width), Number(height)];
}
