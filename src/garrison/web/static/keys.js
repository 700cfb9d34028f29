// Keyboard shortcuts: single keys, listed by `?`, which can be switched off (they disturb dictation). Every shortcut has
// an equivalent control on the page.

import { openDialog } from "./dialog.js";
import { html } from "./view.js";

const OFF = "garrison.shortcuts.off";
const ALWAYS = [
  ["?", "show this list"],
  ["Escape", "close what is open"],
  ["Tab", "go to the next control"],
];

/**
 * Listen for shortcuts.
 * @param {Array<[string, string, (event: KeyboardEvent) => void]>} shortcuts key, what it does in words, the doing
 */
export function keys(shortcuts) {
  document.getElementById("help").addEventListener("click", () => list(shortcuts));
  document.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || document.querySelector("dialog[open]"))
      return;
    const found = shortcuts.find(([key]) => key === event.key);
    if (event.key !== "Escape" && (typing(event.target) || localStorage.getItem(OFF))) return;
    if (event.key === "?") list(shortcuts);
    else if (found) found[2](event);
    else return;
    if (event.key !== "Escape") event.preventDefault();
  });
}

const typing = target => target.matches?.("input, textarea, select, [contenteditable]");

function list(shortcuts) {
  const rows = [
    ...shortcuts.filter(([key]) => key !== "Escape"),
    ["arrows, Enter", "move in the graph and the timeline; open a node"],
    ...ALWAYS,
  ];
  openDialog({ class: "keys", "aria-labelledby": "keys-title" }, Keys, { rows });
}

const turn = event => (event.currentTarget.checked ? localStorage.removeItem(OFF) : localStorage.setItem(OFF, "1"));

const Keys = ({ rows, close }) =>
  html`<h2 id="keys-title">Keyboard</h2>
    <dl>
      ${rows.map(
        ([key, what]) =>
          html`<div key=${key}>
            <dt><kbd>${key}</kbd></dt>
            <dd>${what}</dd>
          </div>`,
      )}
    </dl>
    <label><input type="checkbox" checked=${!localStorage.getItem(OFF)} onChange=${turn} /> Single-key shortcuts</label>
    <div class="row end"><button type="button" onClick=${() => close()}>Close</button></div>`;
