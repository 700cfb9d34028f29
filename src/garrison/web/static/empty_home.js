// The page of a home in which nothing was launched yet: how that is done. The first run takes its place. And that of a
// run which is not there: which ones are.

import { el } from "./dom.js";
import { tab } from "./notice.js";

const GRAPH = `digraph work {
    start [shape=Mdiamond]; exit [shape=Msquare]
    tests [shape=box, agent=claude, prompt="Write tests for the parser"]
    start -> tests -> exit
}`;

/** Show in `main` how a first run is begun; `home` is where its runs would lie. */
export function emptyHome(main, home) {
  tab("", 0);
  const where = /^[\w/.~+-]+$/.test(home) ? home : `'${home.replaceAll("'", "'\\''")}'`;
  main.replaceChildren(el("section", { class: "hello", "aria-labelledby": "hello-title" },
    el("h1", { id: "hello-title" }, "No run yet"),
    el("p", {}, "The first run of this home shows here as soon as it begins. A pipeline is a graph of tasks; save one as work.dot:"),
    el("pre", { class: "wrap" }, GRAPH),
    el("p", {}, "and launch it on a repository of yours, with what tests it:"),
    el("pre", { class: "wrap" }, `garrison --home ${where} launch work.dot --target-dir ~/src/project --gate "make test"`)));
}

/** Show in `main` that a run is not there, and those that are. */
export function noSuchRun(main, why, runs) {
  main.className = "";
  main.replaceChildren(el("section", { class: "hello", "aria-labelledby": "hello-title" },
    el("h1", { id: "hello-title" }, "No such run"), el("p", {}, why),
    el("ul", {}, runs.map(one => el("li", {}, el("a", { href: `/?run=${encodeURIComponent(one.run)}` }, one.run), ` ${one.status}`)))));
}
