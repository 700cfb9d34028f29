// Table of all runs of a home, with search, filters by state and repository, and an order by any column.

import { part } from "./api.js";
import { el, empty, keyed, panel, say, set } from "./dom.js";
import { reset, since } from "./time.js";
import { count, dollars, millis, signOf, span, stateOf } from "./words.js";

const SHOWN = 100; // rows at first
const WAITS = "waits"; // the filter of runs in which something waits
const PLACES = ["landed", "no change", "landing", "working", "parked", "failed", "skipped", "waiting"]; // of the bar
const COLUMNS = [ // name, title, the value that orders
  ["status", "State", run => run.status], ["run", "Run", run => run.run], ["gates", "Waits for you", run => run.gates],
  ["progress", "Progress", run => run.nodes ? run.nodes_done / run.nodes : 0], ["cost", "Cost", run => run.cost ?? 0],
  ["duration", "Duration", run => lasted(run)], ["created", "Started", run => millis(run.created) ?? 0], ["repo", "Repository", run => run.repo],
];
const DOWN = new Set(["gates", "cost", "duration", "created", "progress"]); // the largest first at the first click

const lasted = run => ((millis(run.ended) ?? Date.now()) - (millis(run.created) ?? Date.now())) / 1000;

/** The panel: {section, show(runs), search(), restore()}. */
export function runsTable() {
  const number = el("span", { class: "number" });
  const input = el("input", { type: "search", "aria-label": "Search the runs", placeholder: "Run, pipeline, repository, reason", oninput: () => change({ q: input.value }) });
  const repos = el("select", { "aria-label": "Repository", onchange: () => change({ repo: repos.value }) });
  const { section, body } = panel("runs", "Runs", number, input, repos);
  const states = el("div", { class: "filters", role: "group", "aria-label": "State" });
  const head = el("tr", {}, COLUMNS.map(([name, title]) => el("th", { scope: "col", class: `c-${name}` },
    el("button", { type: "button", class: "quiet", onclick: () => order(name) }, title))));
  const rows = el("tbody");
  const none = empty("No run matches.");
  const more = el("button", { type: "button", hidden: true, onclick: () => { most = Infinity; draw(); } });
  body.append(states, el("div", { class: "table-scroll" }, el("table", { class: "runs" }, el("thead", {}, head), rows)), none, more);
  let runs = [], most = SHOWN, wanted = fromAddress();

  /** Take the view from the address, after going back. */
  function restore() {
    wanted = fromAddress();
    draw();
  }

  function change(to) {
    wanted = { ...wanted, ...to };
    const words = Object.entries(wanted).filter(([, value]) => value);
    history.replaceState(null, "", words.length ? `/?${new URLSearchParams(words)}` : "/");
    draw();
  }

  function order(name) {
    const down = wanted.sort === name ? wanted.order !== "down" : DOWN.has(name);
    change({ sort: name, order: down ? "down" : "up" });
  }

  function show(list) {
    runs = list;
    draw();
  }

  function draw() {
    const { q, state, repo, sort, order: way } = wanted;
    const words = q.toLowerCase().split(/\s+/).filter(Boolean);
    const found = runs.filter(run => words.every(word => `${run.run} ${run.pipeline} ${run.repo} ${run.reason} ${run.target}`.toLowerCase().includes(word)))
      .filter(run => !repo || run.repo === repo);
    filters(found);
    const kept = found.filter(run => !state || (state === WAITS ? run.gates : run.status === state));
    const [, , value] = COLUMNS.find(([name]) => name === sort) ?? [];
    if (value) kept.sort((one, other) => (value(one) < value(other) ? -1 : value(one) > value(other) ? 1 : 0) * (way === "down" ? -1 : 1));
    if (input.value !== q) input.value = q;
    const all = [...new Set(runs.map(run => run.repo).filter(Boolean))].sort();
    repos.hidden = all.length < 2;
    keyed(repos, ["", ...all], one => one, one => el("option", { value: one }, one || "all repositories"));
    repos.value = repo;
    COLUMNS.forEach(([name], at) => set(head.children[at], "aria-sort", name === sort ? way === "down" ? "descending" : "ascending" : null));
    say(number, kept.length === runs.length ? runs.length : `${kept.length} of ${runs.length}`);
    none.hidden = kept.length > 0;
    keyed(rows, kept.slice(0, most), run => run.run, row, fill);
    more.hidden = kept.length <= most;
    say(more, `Show all ${kept.length} runs`);
  }

  function filters(found) {
    const counts = new Map([["", found.length]]);
    const waiting = found.filter(run => run.gates).length;
    if (waiting || wanted.state === WAITS) counts.set(WAITS, waiting);
    for (const run of found) counts.set(run.status, (counts.get(run.status) ?? 0) + 1);
    keyed(states, [...counts], ([state]) => state, ([state]) => el("button", { type: "button", class: "quiet", onclick: () => change({ state }) }),
      (button, [state, times]) => {
        set(button, "aria-pressed", String(wanted.state === state));
        say(button, `${state === WAITS ? "waits for you" : state || "all"} ${times}`);
      });
  }

  return { section, show, search: () => input.focus(), restore };
}

function fromAddress() {
  const address = new URLSearchParams(location.search);
  return Object.fromEntries(["q", "state", "repo", "sort", "order"].map(name => [name, address.get(name) ?? ""]));
}

function row(run) {
  return el("tr", {}, el("td", { class: "c-status" }, el("span", { class: "pill" })),
    el("th", { scope: "row", class: "c-run" }, el("a", { href: `/?run=${part(run.run)}` }, run.run), el("span", { class: "kind" })),
    el("td", { class: "c-gates" }), el("td", { class: "c-progress" }, el("div", { class: "bar", role: "img" }, PLACES.map(place => el("span", { class: `s-${stateOf(place)}` }))), el("span", { class: "kind" })),
    el("td", { class: "c-cost" }), el("td", { class: "c-duration" }, since(null)), el("td", { class: "c-created" }, since(null)), el("td", { class: "c-repo" }));
}

function fill(element, run) {
  const of = name => element.querySelector(`.c-${name}`);
  const state = stateOf(run.status);
  set(of("status").firstChild, "class", `pill s-${state}`);
  say(of("status").firstChild, `${signOf(state)} ${run.status}`);
  set(of("status").firstChild, "title", run.reason || null);
  say(of("run").lastChild, run.pipeline === run.run ? "" : run.pipeline);
  say(of("gates"), run.gates ? count(run.gates, "item") : "");
  const bar = of("progress").firstChild;
  PLACES.forEach((place, at) => {
    bar.children[at].hidden = !run.counts[place];
    bar.children[at].style.flexGrow = String(run.counts[place] ?? 0);
  });
  bar.hidden = !run.nodes;
  set(bar, "aria-label", PLACES.filter(place => run.counts[place]).map(place => `${run.counts[place]} ${place}`).join(", ") || "no nodes");
  say(of("progress").lastChild, run.progress);
  say(of("cost"), dollars(run.cost));
  const age = of("duration").firstChild;
  if (run.ended) say(age, span(lasted(run)));
  else reset(age, run.created);
  reset(of("created").firstChild, run.created, "", " ago");
  say(of("repo"), run.repo.split("/").at(-1));
  set(of("repo"), "title", run.repo || null);
}
