// Make and change elements. Text from elsewhere becomes text or an attribute that cannot run, and is made legible on its
// way; nothing here turns a string into markup.

import { legible } from "./legible.js";

const SHOWN = new Set(["title", "aria-label"]); // attributes that are read by people

/**
 * An element.
 * @param {string} tag such as "li"
 * @param {Object<string, *>} attributes `class`, `dataset`, `on…` listeners (functions), properties by attribute name;
 *     false, null and undefined are left out, true is an empty attribute
 * @param {...(Node|string|number|null|false|Array)} children strings become text
 * @returns {HTMLElement}
 */
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "dataset") Object.assign(made.dataset, value);
    else set(made, name, value);
  }
  made.append(...children.flat(Infinity).filter(child => child !== null && child !== undefined && child !== false)
    .map(child => child instanceof Node ? child : legible(String(child))));
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

/** An element of a drawing; attributes and children as in `el`. */
export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) set(made, name, value);
  made.append(...children.flat(Infinity).filter(child => child !== null && child !== undefined && child !== false)
    .map(child => child instanceof Node ? child : legible(String(child))));
  return made;
}

/** Set an attribute, or remove it when it is false, null or undefined; the page is touched only by a change. */
export function set(element, name, value) {
  if (value === false || value === null || value === undefined) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
    return;
  }
  const written = value === true ? "" : SHOWN.has(name) ? legible(String(value)) : String(value);
  if (element.getAttribute(name) !== written) element.setAttribute(name, written);
}

/** Set an element's text if it differs. */
export function say(element, text) {
  const written = text === null || text === undefined ? "" : legible(String(text));
  if (element.textContent !== written) element.textContent = written;
}

/**
 * Make a parent's children those of `items`: elements of known keys stay (and keep the focus), others are made.
 * @param {Element} parent whose children this alone makes
 * @param {Array} items in the order wanted
 * @param {function(*): string} key
 * @param {function(*): Element} make
 * @param {function(Element, *): void} update called for every item
 */
export function keyed(parent, items, key, make, update = () => {}) {
  const old = new Map([...parent.children].map(child => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    let child = old.get(name);
    old.delete(name);
    if (!child) {
      child = make(item);
      child.dataset.key = name;
    }
    update(child, item);
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
  }
  for (const child of old.values()) child.remove();
}

/** A panel of the page: a section with a heading, elements beside it, and a body. */
export function panel(id, title, ...beside) {
  const heading = el("h2", { id: `${id}-title`, tabindex: "-1" }, title);
  const body = el("div", { class: "body" });
  const section = el("section", { id, class: "panel", "aria-labelledby": `${id}-title` },
    el("div", { class: "panel-head" }, heading, ...beside), body);
  return { section, heading, body };
}

/** The text of an empty list. */
export function empty(text) {
  return el("p", { class: "empty" }, text);
}
