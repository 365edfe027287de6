/* Helpers that build elements. Strings are always inserted as text and never as markup, since names are untrusted. */

/**
 * Return a new element.
 * @param {string} tag - Name of the tag, with CSS classes, such as "button.primary".
 * @param {Object} [settings] - Properties and attributes. "on" has listeners by event; "aria" and "data" have aria-*
 *   and data-* attributes.
 * @param {...(Node|string|number|null|false|Array)} children - Children; strings become text, null and false nothing.
 */
export function make(tag, settings = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name);
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(settings)) {
    if (value === undefined || value === null) continue;
    if (key === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else if (key === "aria") for (const [part, text] of Object.entries(value)) setPlain(element, `aria-${part}`, text);
    else if (key === "data") Object.assign(element.dataset, value);
    else if (key in element && key !== "list" && key !== "form") element[key] = value;
    else setPlain(element, key, value);
  }
  element.append(...shown(children));
  return element;
}

/** Set an attribute, unless the value is null, undefined or false. */
function setPlain(element, name, value) {
  if (value !== null && value !== undefined && value !== false) element.setAttribute(name, String(value));
}

/** Return a flat list of children without null, undefined and false. */
function shown(children) {
  return children.flat(3).filter((child) => child !== null && child !== undefined && child !== false);
}

/** Return a button that calls a function. */
export function action(work, ...children) {
  return make("button", { type: "button", on: { click: work } }, ...children);
}

/** Replace the children of an element. */
export function fill(element, ...children) {
  element.replaceChildren(...shown(children));
  return element;
}

/** Announce a text to screen readers without moving the focus. */
export function announce(text, { urgent = false } = {}) {
  const region = document.getElementById(urgent ? "announce-now" : "announce");
  region.textContent = "";
  // A live region is read again for the same text only if it was empty in between.
  setTimeout(() => { region.textContent = text; }, 30);
}

const PATHS = {
  camera: "M4 8h3l2-3h6l2 3h3v11H4z M12 16.5a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7z",
  plus: "M12 5v14 M5 12h14",
  more: "M5 12h.5 M12 12h.5 M19 12h.5",
  close: "M6 6l12 12 M18 6L6 18",
  folder: "M3 7V5h6l2 2h10v12H3z",
  text: "M5 6h14 M5 10.5h14 M5 15h9",
  undo: "M9 8H15a5 5 0 0 1 0 10H8 M9 8l3.5-3.5 M9 8l3.5 3.5",
  redo: "M15 8H9a5 5 0 0 0 0 10h7 M15 8l-3.5-3.5 M15 8l-3.5 3.5",
  bin: "M5 7h14 M10 7V4h4v3 M7 7l1 13h8l1-13 M10.5 11v5 M13.5 11v5",
  download: "M12 4v11 M7.5 11l4.5 4.5 4.5-4.5 M5 20h14",
  upload: "M12 16V5 M7.5 9L12 4.5 16.5 9 M5 20h14",
  copy: "M9 9h11v11H9z M15 9V4H4v11h5",
  warning: "M12 4L2.5 20h19z M12 10v4.5 M12 17.3v.01",
  image: "M4 5h16v14H4z M4 16l5-5 4 4 3-3 4 4 M15.5 9.2v.01",
  rows: "M4 6h16v12H4z M4 10h16 M4 14h16 M10 6v12",
  back: "M14.5 6L8.5 12l6 6",
  check: "M5 12.5l4.5 4.5L19 7.5",
  fold: "M6 9.5l6 6 6-6",
  phone: "M7 3h10v18H7z M11 18h2",
  search: "M10.5 17a6.5 6.5 0 1 0 0-13 6.5 6.5 0 0 0 0 13z M15.5 15.5L20 20",
  sort: "M4 6h16 M6.5 12h11 M9.5 18h5",
};

/** Return an icon in the colour of the text. Screen readers ignore it. */
export function icon(name) {
  const space = "http://www.w3.org/2000/svg";
  const drawing = document.createElementNS(space, "svg");
  for (const [key, value] of Object.entries({ viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true" })) {
    drawing.setAttribute(key, value);
  }
  const path = document.createElementNS(space, "path");
  path.setAttribute("d", PATHS[name]);
  drawing.append(path);
  return drawing;
}

/** Return a button with an icon and words. With "quiet", the words are a tooltip and for screen readers only. */
export function iconButton(name, words, listener, { quiet = false, kind = "" } = {}) {
  const settings = { type: "button", on: { click: listener } };
  if (quiet) return make(`button.round${kind}`, { ...settings, title: words, aria: { label: words } }, icon(name));
  return make(`button${kind}`, settings, icon(name), words);
}

/** Return a number with a noun in singular or plural: "1 sample", "2 samples". */
export function plural(n, one, many = `${one}s`) {
  return `${n.toLocaleString("en")} ${n === 1 ? one : many}`;
}
