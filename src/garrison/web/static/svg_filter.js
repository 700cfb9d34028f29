// Rebuild Graphviz' SVG from an allow-list. Labels, tooltips and names come from untrusted graphs, so only shapes, their
// geometry and text are copied; no link, style, script, event handler or foreign element passes, whatever Graphviz emits.

import { legible } from "./legible.js";

const SVG = "http://www.w3.org/2000/svg";
const GEOMETRY = [
  "d",
  "points",
  "cx",
  "cy",
  "rx",
  "ry",
  "x",
  "y",
  "x1",
  "y1",
  "x2",
  "y2",
  "width",
  "height",
  "transform",
];
const ALLOWED = {
  g: ["transform"],
  path: GEOMETRY,
  polygon: GEOMETRY,
  polyline: GEOMETRY,
  ellipse: GEOMETRY,
  line: GEOMETRY,
  text: ["x", "y", "text-anchor", "transform"],
};
const KINDS = { node: "node", edge: "edge", cluster: "cluster" };
const WAY = /^way-(\d+)$/; // the id of an edge, with its index in the graph

/**
 * A drawing from Graphviz' text.
 * @param {string} written SVG as Graphviz writes it
 * @returns {{svg: SVGElement, nodes: Map<string, SVGGElement>, edges: Map<string, SVGGElement>, width: number,
 *     height: number}} sizes in points; a node is found by its id in the graph, an edge by its index
 */
export function drawing(written) {
  const parsed = new DOMParser().parseFromString(written, "image/svg+xml");
  const root = parsed.documentElement;
  if (root.nodeName !== "svg") throw new Error("Graphviz wrote no drawing");
  const [x, y, width, height] = (root.getAttribute("viewBox") ?? "0 0 100 100").split(/[ ,]+/).map(Number);
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", [x, y, width, height].join(" "));
  const nodes = new Map(),
    edges = new Map();
  for (const child of root.children) copy(child, svg, nodes, edges);
  for (const g of nodes.values()) g.parentElement.append(g); // above the edges, which may not cross a symbol
  return { svg, nodes, edges, width, height };
}

function copy(element, parent, nodes, edges) {
  if (wraps(element)) {
    for (const child of element.children) copy(child, parent, nodes, edges);
    return;
  }
  if (isGraph(element.parentElement) && element.localName !== "g") return; // the background, and the graph's own label
  const made = allowedPart(element);
  if (!made) return;
  const kind = element.localName === "g" ? KINDS[element.getAttribute("class")] : undefined;
  if (kind) made.classList.add(kind);
  if (kind === "node")
    nodes.set([...element.children].find(child => child.localName === "title")?.textContent ?? "", made);
  const way = kind === "edge" ? WAY.exec(element.id) : null;
  if (way) edges.set(way[1], made);
  for (const child of element.children) copy(child, made, nodes, edges);
  parent.append(made);
}

/** An element with its allowed parts; null if the element itself is not allowed. */
function allowedPart(element) {
  const attributes = Object.hasOwn(ALLOWED, element.localName) ? ALLOWED[element.localName] : null;
  if (!attributes || element.namespaceURI !== SVG) return null;
  const made = document.createElementNS(SVG, element.localName);
  for (const name of attributes) {
    if (element.hasAttribute(name)) made.setAttribute(name, element.getAttribute(name));
  }
  if (element.hasAttribute("stroke-dasharray")) made.classList.add("dashed");
  if (element.localName === "text") made.textContent = legible(element.textContent);
  return made;
}

const isGraph = element => element.getAttribute("class") === "graph";

/** Whether it only wraps an element with a tooltip: its children are copied without it. */
const wraps = element =>
  element.localName === "a" ||
  (element.localName === "g" && !isGraph(element) && !Object.hasOwn(KINDS, element.getAttribute("class") ?? ""));
