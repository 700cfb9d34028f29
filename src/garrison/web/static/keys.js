// Keyboard shortcuts: single keys, listed by `?`, which can be switched off (they disturb dictation). Every shortcut does
// what a control on the page does as well.

import { el } from "./dom.js";

const OFF = "garrison.shortcuts.off";
const ALWAYS = [["?", "show this list"], ["Escape", "close what is open"], ["Tab", "go to the next control"]];

/**
 * Listen for shortcuts.
 * @param {Array<[string, string, function()]>} shortcuts key, what it does in words, the doing
 */
export function keys(shortcuts) {
  document.getElementById("help").addEventListener("click", () => list(shortcuts));
  document.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || document.querySelector("dialog[open]")) return;
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
  const rows = [...shortcuts.filter(([key]) => key !== "Escape"), ["arrows, Enter", "move in the graph and the timeline; open a node"], ...ALWAYS];
  const box = el("input", { type: "checkbox", checked: !localStorage.getItem(OFF), onchange: () =>
    box.checked ? localStorage.removeItem(OFF) : localStorage.setItem(OFF, "1") });
  const dialog = el("dialog", { "aria-labelledby": "keys-title", class: "keys" },
    el("h2", { id: "keys-title" }, "Keyboard"),
    el("dl", {}, rows.map(([key, what]) => el("div", {}, el("dt", {}, el("kbd", {}, key)), el("dd", {}, what)))),
    el("label", {}, box, " Single-key shortcuts"),
    el("div", { class: "row end" }, el("button", { type: "button", onclick: () => dialog.close() }, "Close")));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
