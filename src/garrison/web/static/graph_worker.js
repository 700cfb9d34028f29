// Graphviz, in a thread of its own: {dot} becomes {down, right}, the same graph drawn both ways. A long chain is read
// best from left to right on a wide panel and downwards on a phone; which one is shown, the page decides by its size.

import { instance } from "./vendor/viz.js";

const viz = instance();
const DIRECTION = /rankdir=("?)(TB|LR)\1/;

self.addEventListener("message", async ({ data: { id, dot } }) => {
  try {
    const graphviz = await viz;
    const draw = way => graphviz.renderString(dot.replace(DIRECTION, `rankdir=${way}`), { format: "svg", engine: "dot" });
    const down = draw("TB");
    self.postMessage({ id, down, right: DIRECTION.test(dot) ? draw("LR") : down });
  } catch (problem) {
    self.postMessage({ id, problem: String(problem?.message ?? problem) });
  }
});
