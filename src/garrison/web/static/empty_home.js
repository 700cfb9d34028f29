// Page of a home without runs: how to launch one; the first run replaces it. And the page of a run that does not exist,
// with those that do.

import { el } from "./dom.js";
import { tab } from "./notice.js";

const GRAPH = `digraph work {
    start [shape=Mdiamond]; exit [shape=Msquare]
    tests [shape=box, agent=claude, prompt="Write tests for the parser"]
    start -> tests -> exit
}`;

/** Show in `main` how to launch a first run; `home` is where its runs are kept. */
export function emptyHome(main, home) {
  main.className = "";
  tab("", 0);
  const where = /^[\w/.~+-]+$/.test(home) ? home : `'${home.replaceAll("'", "'\\''")}'`;
  main.replaceChildren(el("section", { class: "hello", "aria-labelledby": "hello-title" },
    el("h1", { id: "hello-title" }, "No run yet"),
    el("p", {}, "The first run of this home appears here as soon as it starts. A pipeline is a graph of tasks; save one as work.dot:"),
    el("pre", { class: "wrap" }, GRAPH),
    el("p", {}, "and launch it on your repository, with the command that tests it:"),
    el("pre", { class: "wrap" }, `garrison --home ${where} launch work.dot --target-dir ~/src/project --gate "make test"`)));
}

/** Show in `main` that a run does not exist, and those that do. */
export function noSuchRun(main, why, runs) {
  main.className = "";
  main.replaceChildren(el("section", { class: "hello", "aria-labelledby": "hello-title" },
    el("h1", { id: "hello-title" }, "No such run"), el("p", {}, why),
    el("ul", {}, runs.map(one => el("li", {}, el("a", { href: `/?run=${encodeURIComponent(one.run)}` }, one.run), ` ${one.status}`)))));
}
