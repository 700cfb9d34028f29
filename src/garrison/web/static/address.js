// Address of the page: it names the run, node, tab, attempt, line of a log or comment that is shown, for sharing.

const at = () => new URLSearchParams(location.search);

/** A value of the address; null if it is missing. */
export const inAddress = name => at().get(name);

/**
 * Keep values in the address; an empty one is removed.
 * @param {Object<string, string|number|null|undefined>} values
 */
export function keepInAddress(values) {
  history.replaceState(history.state, "", `${location.pathname}?${changed(values)}`);
}

/** An address of this page with other values, for a link. */
export const addressWith = values => `${location.pathname}?${changed(values)}`;

/** The address that leads others to the same place. */
export const wholeAddress = values => `${location.origin}${addressWith(values)}`;

function changed(values) {
  const address = at();
  for (const [name, value] of Object.entries(values)) {
    if (value === null || value === undefined || value === "") address.delete(name);
    else address.set(name, String(value));
  }
  return address;
}
