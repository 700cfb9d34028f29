// Heads of a table that is sorted by any of its columns.

import { html } from "./view.js";

/**
 * The row of heads.
 * @param {Object} props
 * @param {Array<[string, string]>} props.columns name and title of each
 * @param {{by: string, down: boolean}} props.order what it is sorted by
 * @param {(a: string) => void} props.sort called with the column that the user chooses
 */
export const SortedHeads = ({ columns, order, sort }) =>
  html`<thead>
    <tr>
      ${columns.map(
        ([name, title]) =>
          html` <th
            key=${name}
            scope="col"
            class="c-${name}"
            aria-sort=${name === order.by ? (order.down ? "descending" : "ascending") : null}
          >
            <button type="button" class="quiet" onClick=${() => sort(name)}>${title}</button>
          </th>`,
      )}
    </tr>
  </thead>`;
