// Dialogs: opened over the page, closed by Escape or by their controls; the focus returns to where it was.

import { legible } from "./legible.js";
import { html, render } from "./view.js";

/**
 * Open a dialog until it is closed.
 * @param {Object<string, string>} attributes class, aria-label or aria-labelledby
 * @param {(...given: any[]) => any} Content a component: `close(answer)` is among its properties
 * @param {Object} props the others
 * @returns {Promise<*>} the answer; null: closed without one
 */
export function openDialog(attributes, Content, props = {}) {
  const dialog = document.createElement("dialog");
  for (const [name, value] of Object.entries(attributes)) dialog.setAttribute(name, legible(value));
  let answer = null;
  const close = given => {
    answer = given ?? null;
    dialog.close();
  };
  render(html`<${Content} ...${props} close=${close} />`, dialog);
  document.body.append(dialog);
  dialog.showModal();
  return new Promise(resolve =>
    dialog.addEventListener("close", () => {
      render(null, dialog);
      dialog.remove();
      resolve(answer);
    }),
  );
}

/** Ask for confirmation: a promise of true or false. */
export async function confirmed(question, yes) {
  return (await openDialog({ "aria-label": question }, Confirm, { question, yes })) === true;
}

const Confirm = ({ question, yes, close }) =>
  html`<p>${question}</p>
    <div class="row end">
      <button type="button" onClick=${() => close()}>Not now</button>
      <button type="button" class="danger" onClick=${() => close(true)}>${yes}</button>
    </div>`;
