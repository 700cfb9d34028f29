// Graphviz in its own thread: {dot} becomes {down, right}, the same graph drawn in both directions if `both` are
// wanted. A long chain is best read from left to right on a wide panel and downwards on a phone; the page chooses by its
// size.

import { instance } from "./vendor/viz.js";

const viz = instance();
// Without a system's fonts Graphviz knows the widths of a few by name; it measures others as Times, which is narrower than
// the page's font.
const DEFAULTS = /^ {4}(?:graph|node|edge) \[.*$/gm;
const DIRECTION = /rankdir=("?)(TB|LR)\1/;

self.addEventListener("message", async ({ data: { id, dot: given, both } }) => {
  try {
    const graphviz = await viz;
    const dot = given.replace(DEFAULTS, line => line.replace('fontname="sans-serif"', 'fontname="Helvetica"'));
    const draw = way =>
      graphviz.renderString(dot.replace(DIRECTION, `rankdir=${way}`), { format: "svg", engine: "dot" });
    const down = draw("TB");
    self.postMessage({ id, down, right: both && DIRECTION.test(dot) ? draw("LR") : down });
  } catch (problem) {
    self.postMessage({ id, problem: String(problem?.message ?? problem) });
  }
});
