// Ask before something that cannot be taken back: a dialog that names what it is about and what is lost. It cannot be
// agreed to by accident: the focus is on "Not now", a key that is still held down is ignored, and the button that agrees
// works only after a moment.

import { el } from "./dom.js";

const ARMED_AFTER = 400; // milliseconds

/**
 * Ask.
 * @param {Object} what
 * @param {string} what.title the question
 * @param {Array<string>} [what.lines] what happens, what is lost
 * @param {string} what.yes the word on the button that agrees
 * @param {string} [what.kind] class of that button
 * @param {{label: string, value: string, required: boolean}} [what.field] a text to give with it
 * @param {Array<{value: string, label: string}>} [what.options] things to choose from, all chosen at first
 * @returns {Promise<{text: string, chosen: Array<string>}|null>} null: not now
 */
export function ask({ title, lines = [], yes, kind = "danger", field, options }) {
  const text = field && el("input", { type: "text", value: field.value ?? "", placeholder: field.label, "aria-label": field.label, autocomplete: "off" });
  const boxes = (options ?? []).map(one => el("input", { type: "checkbox", value: one.value, checked: true }));
  const agree = el("button", { type: "button", class: kind, disabled: true }, yes);
  const dialog = el("dialog", { class: "ask", "aria-label": title },
    el("h2", {}, title), lines.map(line => el("p", {}, line)),
    boxes.length ? el("ul", { class: "options" }, boxes.map((box, at) => el("li", {}, el("label", {}, box, ` ${options[at].label}`)))) : null,
    text, el("div", { class: "row end" }, el("button", { type: "button", autofocus: true, onclick: () => dialog.close() }, "Not now"), agree));
  return new Promise(resolve => {
    let answer = null;
    const possible = () => (!text || !field.required || text.value.trim()) && (!boxes.length || boxes.some(box => box.checked));
    let armed = false;
    const arm = () => { agree.disabled = !(armed && possible()); };
    const timer = setTimeout(() => { armed = true; arm(); }, ARMED_AFTER);
    dialog.addEventListener("input", arm);
    dialog.addEventListener("keydown", event => { if (event.repeat && event.key === "Enter") event.preventDefault(); });
    agree.addEventListener("click", () => {
      answer = { text: text?.value.trim() ?? "", chosen: boxes.filter(box => box.checked).map(box => box.value) };
      dialog.close();
    });
    dialog.addEventListener("close", () => {
      clearTimeout(timer);
      dialog.remove();
      resolve(answer);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
