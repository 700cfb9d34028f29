// Buttons: one that acts, and a small one among the tools of a panel.

import { html, useState } from "./view.js";

/**
 * A function that reports whether it is in progress.
 * @template {Array<any>} Given
 * @param {(...given: Given) => Promise<any>} does
 * @returns {[boolean, (...given: Given) => Promise<any>]} busy, run
 */
export function useBusy(does) {
  const [busy, setBusy] = useState(false);
  const run = async (/** @type {Given} */ ...given) => {
    setBusy(true);
    try {
      return await does(...given);
    } finally {
      setBusy(false);
    }
  };
  return [busy, run];
}

/** A button whose action takes a while: it cannot be pressed again until the promise of `does` resolves. */
export function Act({ does, class: kind = "", children, ...more }) {
  const [busy, run] = useBusy(does);
  return html`<button
    type="button"
    class=${kind}
    ...${more}
    disabled=${busy || Boolean(more.disabled)}
    onClick=${() => run()}
  >
    ${children}
  </button>`;
}

/** A small button; `label` says in full what it does. */
export const Tool = ({ label, does, children, ...more }) =>
  html`<button type="button" class="quiet" aria-label=${label} title=${label} ...${more} onClick=${() => does()}>
    ${children}
  </button>`;
