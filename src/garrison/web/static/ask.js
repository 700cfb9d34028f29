// Ask before an action that cannot be undone: a dialog that names its object and what is lost. It cannot be
// confirmed by accident: the focus is on "Not now", a key that is still held down is ignored, and the confirming button
// works only after a moment.

import { openDialog } from "./dialog.js";
import { html, useEffect, useState } from "./view.js";

const ARMED_AFTER = 400; // milliseconds

/**
 * Ask.
 * @param {Object} what
 * @param {string} what.title the question
 * @param {Array<string>} [what.lines] what happens, what is lost
 * @param {string} what.yes the word on the confirming button
 * @param {string} [what.no] the word on the other one
 * @param {string} [what.kind] class of that button
 * @param {{label: string, value?: string, required?: boolean}} [what.field] a text to give with it
 * @param {Array<{value: string, label: string}>} [what.options] things to choose from, all chosen at first
 * @returns {Promise<{text: string, chosen: Array<string>}|null>} null: not now
 */
export const ask = what => openDialog({ class: "ask", "aria-label": what.title }, Question, what);

function Question({ title, lines = [], yes, no = "Not now", kind = "danger", field, options = [], close }) {
  const [armed, arm] = useState(false);
  const [text, write] = useState(field?.value ?? "");
  const [chosen, choose] = useState(() => options.map(one => one.value));
  useEffect(() => {
    const timer = setTimeout(() => arm(true), ARMED_AFTER);
    return () => clearTimeout(timer);
  }, []);
  const complete = (!field?.required || text.trim()) && (!options.length || chosen.length);
  const turn = (value, on) =>
    choose(options.map(one => one.value).filter(one => (one === value ? on : chosen.includes(one))));
  return html`<div
    onKeyDown=${event => {
      if (event.repeat && event.key === "Enter") event.preventDefault();
    }}
  >
    <h2>${title}</h2>
    ${lines.map(line => html`<p>${line}</p>`)}
    ${
      options.length > 0 &&
      html`<ul class="options">
        ${options.map(
          one =>
            html`<li key=${one.value}>
              <label>
                <input
                  type="checkbox"
                  value=${one.value}
                  checked=${chosen.includes(one.value)}
                  onChange=${event => turn(one.value, event.currentTarget.checked)}
                />
                ${` ${one.label}`}</label
              >
            </li>`,
        )}
      </ul>`
    }
    ${
      field &&
      html`<input
        type="text"
        value=${text}
        placeholder=${field.label}
        aria-label=${field.label}
        autocomplete="off"
        onInput=${event => write(event.currentTarget.value)}
      />`
    }
    <div class="row end">
      <button type="button" autofocus onClick=${() => close()}>${no}</button>
      <button
        type="button"
        class=${kind}
        disabled=${!(armed && complete)}
        onClick=${() => close({ text: text.trim(), chosen })}
      >
        ${yes}
      </button>
    </div>
  </div>`;
}
