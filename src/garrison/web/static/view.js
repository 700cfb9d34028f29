// Base of every panel: preact and htm, and common rules. A panel is a component: what it shows comes in
// as properties, what the user does goes out through functions among them. Text from elsewhere becomes text, and is made
// legible on its way, in this one place; nothing here turns a string into markup.

import { Component, Fragment, createRef, h, options, render } from "./vendor/preact-11.2.0/preact.mjs";
import { useEffect, useLayoutEffect, useReducer, useRef, useState } from "./vendor/preact-11.2.0/hooks.mjs";
import htm from "./vendor/htm-3.1.1/htm.mjs";
import { legible } from "./legible.js";

const READ_BY_PEOPLE = ["title", "aria-label", "placeholder"];
const OWN_ADDRESS = /^(?:\/(?!\/)|[#?]|blob:)/; // of a link: nothing that runs, nothing elsewhere
const FORGE = /^https?:\/\/[^\s/@]+\//; // of a link with `data-forge`, an address that the forge gave
const PREVIEW = /^http:\/\/[a-z0-9-]+\.localhost:\d+\/$/; // of a link with `data-preview`, as `garrison preview` prints it
const RETRY = 2000; // milliseconds until a module that could not be loaded is requested again
const MARKUP = "dangerouslySetInnerHTML";

/** Apply the rules to everything that is drawn: preact calls this for each element and for each text. */
options.vnode = vnode => {
  const { type } = vnode;
  const props = /** @type {Object<string, any>} */ (vnode.props);
  if (type === null) vnode.props = legible(String(props));
  else if (typeof type === "string") {
    for (const name of READ_BY_PEOPLE) if (typeof props[name] === "string") props[name] = legible(props[name]);
    const isForges = props["data-forge"] && FORGE.test(props.href);
    if (isForges || (props["data-preview"] && PREVIEW.test(props.href))) {
      Object.assign(props, { target: "_blank", rel: "noopener noreferrer" });
    } else if (props.href !== undefined && !OWN_ADDRESS.test(props.href)) delete props.href;
    if (MARKUP in props) delete props[MARKUP];
  }
};

/** Elements from a template: html`<p class=${look}>${text}</p>`, html`<${Panel} id="costs" title="Cost">…<//>`. */
export const html = htm.bind(h);

export { Component, Fragment, createRef, render, useEffect, useLayoutEffect, useReducer, useRef, useState };

const names = (one, other) => Object.keys({ ...one, ...other });
const shallow = (one, other) => names(one, other).every(name => one[name] === other[name]);

/** Whether two sets of properties draw the same: of `state`, the run's state, only `parts` are compared. */
export const sameDrawing = (parts, one, other) =>
  names(one, other).every(
    name =>
      one[name] === other[name] ||
      (name === "state" && one.state && other.state && parts.every(part => one.state[part] === other.state[part])),
  );

/** A component that is drawn again only when `same(properties, new properties)` is false: by default, when one of them changed. */
export function memo(component, same = shallow) {
  return class extends Component {
    shouldComponentUpdate(next) {
      return !same(this.props, next);
    }
    render(props) {
      return h(component, props);
    }
  };
}

/** A component that shows these parts of the run's state, and is drawn again only when one of them changed. */
export const reading = (parts, component) => memo(component, (one, other) => sameDrawing(parts, one, other));

/**
 * A component whose module is loaded when it is drawn for the first time, or by its `load`; nothing is drawn until then.
 * @param {() => Promise<any>} found resolves to the component
 */
export function later(found) {
  let Loaded = null;
  const load = async () => {
    Loaded ??= await found();
  };
  function Later(props) {
    const [, draw] = useReducer(count => count + 1, 0);
    if (!Loaded) load().then(draw, () => setTimeout(draw, RETRY));
    return Loaded && h(Loaded, props);
  }
  return Object.assign(Later, { load: () => load().catch(() => {}) });
}

/** A panel of the page: a section with a heading, elements `next to` it, others `above` its body. */
export function Panel({ id, title, beside, above, hidden, class: kind, children }) {
  return html`<section
    id=${id}
    class=${kind ? `panel ${kind}` : "panel"}
    aria-labelledby="${id}-title"
    hidden=${Boolean(hidden)}
  >
    <div class="panel-head">
      <h2 id="${id}-title" tabindex="-1">${title}</h2>
      ${beside}
    </div>
    ${above}
    <div class="body">${children}</div>
  </section>`;
}

/** The text of an empty list. */
export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;

/** Placeholder for data that is not known yet. */
export const Skeleton = ({ lines = 3 }) =>
  html`<div class="skeleton" aria-hidden="true">
    ${Array.from({ length: lines }, (_, at) => html`<span key=${at} />`)}
  </div>`;

/** A control of a form with its label. */
export const Field = ({ label, children }) => html`<label class="field"><span>${label}</span>${children}</label>`;
