// Geometry of the shapes that Graphviz draws, and the texts within them: it places both without knowing the page's font.

const SIGNS = 52; // pixels of a node's width that its signs take

/** Make names fit that are wider here than Graphviz assumed: `marks` of a drawing that is shown. */
export function squeeze(marks) {
  const texts = [...marks.values()].flatMap(({ g, box }) =>
    [...g.querySelectorAll(":scope > text:not(.sign)")].map(text => [text, box.width - SIGNS]),
  );
  const wide = texts.map(([text, most]) => most > 0 && text.getComputedTextLength() > most); // read all, then write
  texts.forEach(([text, most], at) => {
    if (!wide[at]) return;
    text.setAttribute("textLength", most);
    text.setAttribute("lengthAdjust", "spacingAndGlyphs");
  });
}

/** Separate the lines of a node's label for screen readers, where they were broken between words. */
export function joinLines(g, label) {
  const lines = [...g.querySelectorAll(":scope > text:not(.sign)")];
  lines
    .slice(1)
    .forEach((line, at) => label.includes(`${lines[at].textContent} ${line.textContent}`) && line.before(" "));
}

/** The box around a shape, from its numbers: there is no layout yet. */
export function boxOf(shape) {
  if (!shape) return { x: 0, y: 0, width: 0, height: 0 };
  if (shape.localName === "ellipse") {
    const of = name => Number(shape.getAttribute(name));
    return { x: of("cx") - of("rx"), y: of("cy") - of("ry"), width: 2 * of("rx"), height: 2 * of("ry") };
  }
  const [xs, ys] = numbersOf(shape);
  const [x, y] = [Math.min(...xs), Math.min(...ys)];
  return { x, y, width: Math.max(...xs) - x, height: Math.max(...ys) - y };
}

/** Whether a shape is as wide at its top as in its middle. */
export function isBox(shape) {
  if (shape?.localName !== "polygon") return false;
  const [xs, ys] = numbersOf(shape);
  return ys.filter((y, at) => y === Math.min(...ys) && xs[at] === Math.min(...xs)).length > 0;
}

/** The x and the y of a shape's points. */
function numbersOf(shape) {
  const numbers = (shape?.getAttribute("points") ?? shape?.getAttribute("d") ?? "")
    .match(/-?\d+(\.\d+)?/g)
    ?.map(Number) ?? [0, 0];
  return [numbers.filter((_, at) => at % 2 === 0), numbers.filter((_, at) => at % 2 === 1)];
}

/** About the middle of an edge. */
export function middle(path) {
  const [xs, ys] = numbersOf(path);
  const at = Math.floor(xs.length / 2);
  return { x: xs[at], y: ys[at] };
}
