// Log and transcript of one attempt of a node, as views of the files behind them.

import { el } from "./dom.js";
import { fileView } from "./file_view.js";
import { legible, unfinished } from "./legible.js";
import { blockOf } from "./transcript.js";

/** The log, in `place`; `at(kind)` gives the path of a file, with its query begun. */
export function logView(place, at, name, live) {
  let rest = "", next = -1;
  /** A piece with the escape sequence that the one before it began. */
  function joined(found) {
    const text = found.from === next ? rest + found.text : found.text;
    rest = unfinished(text);
    next = found.next;
    return text.slice(0, text.length - rest.length);
  }
  return fileView(place, {
    address: at("log"), search: at("log/search"), name: `${name}.log`, nothing: "Nothing has been printed yet.", box: el("pre", {}), live,
    text: found => found.text,
    render(found, needle) {
      const text = needle === null ? joined(found) : found.text;
      const hit = needle === null ? -1 : text.toLowerCase().indexOf(needle.toLowerCase());
      if (hit < 0) return [document.createTextNode(legible(text))];
      return [document.createTextNode(legible(text.slice(0, hit))), el("mark", {}, text.slice(hit, hit + needle.length)),
        document.createTextNode(legible(text.slice(hit + needle.length)))];
    },
  });
}

/** The transcript, as `logView`. */
export function transcriptView(place, at, name, live) {
  return fileView(place, {
    address: at("transcript"), search: at("transcript/search"), name: `${name}-transcript.txt`,
    nothing: "There is no transcript of this attempt: its agent keeps none, or has not started.", box: el("ol", { class: "blocks" }), live,
    text: found => found.blocks.map(block => `${[block.at, block.role, block.kind, block.name].filter(Boolean).join(" ")}\n${block.text}\n\n`).join(""),
    render: (found, needle) => found.blocks.map((block, place) => {
      const made = blockOf(block);
      if (needle !== null && !place) {
        made.classList.add("hit");
        made.querySelector("details")?.setAttribute("open", "");
      }
      return made;
    }),
  });
}
