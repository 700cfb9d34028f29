// Log and transcript of one attempt of a node, as views of the files behind them.

import { FileView } from "./file_view.js";
import { unfinished } from "./legible.js";
import { Block } from "./transcript.js";
import { html, useState } from "./view.js";

/** The log; `at(kind)` gives the path of a file, with its query started; `name`: of a downloaded file, without extension. */
export function Log({ at, name, live }) {
  const [joined] = useState(joiner);
  return html`<${FileView}
    address=${at("log")}
    search=${at("log/search")}
    name="${name}.log"
    nothing="Nothing has been printed yet."
    box="pre"
    live=${live}
    text=${textOf}
    prepare=${(found, needle) => ({ text: needle === null ? joined(found) : found.text, needle })}
    Piece=${LogPiece}
  />`;
}

const textOf = found => found.text;

/** A piece of a log with the escape sequence that started in the one before. */
function joiner() {
  let rest = "",
    next = -1;
  return found => {
    const text = found.from === next ? rest + found.text : found.text;
    rest = unfinished(text);
    next = found.next;
    return text.slice(0, text.length - rest.length);
  };
}

function LogPiece({ text, needle }) {
  const hit = needle === null ? -1 : text.toLowerCase().indexOf(needle.toLowerCase());
  if (hit < 0) return text;
  return html`${text.slice(0, hit)}<mark>${text.slice(hit, hit + needle.length)}</mark>${text.slice(hit + needle.length)}`;
}

/** The transcript, as `Log`. */
export const Transcript = ({ at, name, live }) =>
  html`<${FileView}
    address=${at("transcript")}
    search=${at("transcript/search")}
    name="${name}-transcript.txt"
    nothing="There is no transcript of this attempt: its agent keeps none, or has not started."
    box="ol"
    live=${live}
    text=${blocksText}
    prepare=${(found, needle) => ({ blocks: found.blocks, found: needle !== null })}
    Piece=${Blocks}
  />`;

const blocksText = found =>
  found.blocks
    .map(block => `${[block.at, block.role, block.kind, block.name].filter(Boolean).join(" ")}\n${block.text}\n\n`)
    .join("");

const Blocks = ({ blocks, found }) =>
  blocks.map((block, at) => html`<${Block} key=${at} block=${block} hit=${found && !at} />`);
