// Address of the page: what is shown stands in it, so that a run, node, tab, attempt, line of a log or comment can be sent.

const at = () => new URLSearchParams(location.search);

/** A value of the address; null without. */
export const inAddress = name => at().get(name);

/**
 * Keep values in the address, and take those without one out of it.
 * @param {Object<string, string|number|null|undefined>} values
 */
export function keepInAddress(values) {
  history.replaceState(history.state, "", `${location.pathname}?${changed(values)}`);
}

/** An address of this page with other values, for a link. */
export const addressWith = values => `${location.pathname}?${changed(values)}`;

/** The address as others need it to come to the same place. */
export const wholeAddress = values => `${location.origin}${addressWith(values)}`;

function changed(values) {
  const address = at();
  for (const [name, value] of Object.entries(values)) {
    if (value === null || value === undefined || value === "") address.delete(name);
    else address.set(name, String(value));
  }
  return address;
}
