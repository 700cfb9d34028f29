// The page of a home in which nothing was launched yet: how that is done. The first run takes its place.

import { el } from "./dom.js";
import { tab } from "./notice.js";

const GRAPH = `digraph work {
    start [shape=Mdiamond]; exit [shape=Msquare]
    tests [shape=box, agent=claude, prompt="Write tests for the parser"]
    start -> tests -> exit
}`;

/** Show it in `main`; `home` is where its runs would lie. */
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
