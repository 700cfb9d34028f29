// Tabs: one of several panels is shown in the same place. Left and right move along them, as everywhere.

import { html } from "./view.js";

/**
 * The tabs.
 * @param {Object} props
 * @param {string} props.prefix of ids: a tab is PREFIX-tab-NAME, its panel PREFIX-NAME
 * @param {string} props.label what they are about
 * @param {Array<[string, string, string?]>} props.tabs name, words, and the id of its panel if that is another one
 * @param {string} props.chosen name of the tab that is shown
 * @param {(name: string) => void} props.choose called with the one that is chosen
 * @param {string} [props.class]
 */
export function Tabs({ prefix, label, tabs, chosen, choose, class: kind = "tabs" }) {
  const moved = (event, at) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = (at + step + tabs.length) % tabs.length;
    choose(tabs[next][0]);
    event.currentTarget.parentElement.children[next].focus();
  };
  return html`<div class=${kind} role="tablist" aria-label=${label}>
    ${tabs.map(
      ([name, words, panel], at) =>
        html` <button
          key=${name}
          type="button"
          role="tab"
          class="quiet"
          id="${prefix}-tab-${name}"
          aria-controls=${panel ?? `${prefix}-${name}`}
          aria-selected=${String(name === chosen)}
          tabindex=${name === chosen ? "0" : "-1"}
          onClick=${() => choose(name)}
          onKeyDown=${event => moved(event, at)}
        >
          ${words}
        </button>`,
    )}
  </div>`;
}

/** The panel of a tab. */
export const TabPanel = ({ prefix, name, chosen, children, ...more }) =>
  html`<div
    id="${prefix}-${name}"
    role="tabpanel"
    aria-labelledby="${prefix}-tab-${name}"
    hidden=${name !== chosen}
    ...${more}
  >
    ${children}
  </div>`;
