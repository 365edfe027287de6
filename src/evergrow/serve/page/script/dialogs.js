/* Windows and menus. Escape or a click outside closes them and returns the focus. */

import { fill, icon, make } from "./dom.js";
import { attempt } from "./notice.js";
import { folded } from "./samples.js";

const MOST_EXAMPLES = 5; // examples shown of a question

/**
 * Open a window.
 * @param {string} title - Heading.
 * @param {Node[]} content - Content.
 * @param {Object} [settings] - wide: whether it takes all available width.
 * @returns {HTMLDialogElement} The window.
 */
export function openWindow(title, content, { wide = false } = {}) {
  const heading = make("h2", { id: "window-title" }, title);
  const close = make("button.round", {
    type: "button", title: "Close", aria: { label: "Close" }, on: { click: () => dialog.close() },
  }, icon("close"));
  const dialog = make(wide ? "dialog.wide" : "dialog", { aria: { labelledby: "window-title" } },
    make("div.inside", {}, make("header", {}, heading, close), content));
  closeBeside(dialog);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** Close a window by a click outside, unless text is typed in it or the click is the end of a drag. */
function closeBeside(dialog) {
  let began = null;
  const fieldsOf = () => [...dialog.querySelectorAll("input:not([type=radio], [type=checkbox]), textarea")];
  const before = new Map(fieldsOf().map((one) => [one, one.value]));
  const isTyped = (one) => one.value !== (before.get(one) ?? "");
  dialog.addEventListener("pointerdown", (event) => { began = event.target; });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog && began === dialog && !fieldsOf().some(isTyped)) dialog.close();
  });
}

/**
 * Open a window with a form. Submitting it calls a function and closes the window; errors are shown in it.
 * @param {Object} settings - title; text; fields: elements; verb: words of the button; danger: whether the button is
 *   red; work: called with the form; reload: as in "attempt".
 * @returns {HTMLDialogElement} The window.
 */
export function askFor({ title, text = "", fields = [], verb, danger = false, work, reload = null }) {
  const problems = make("div.problems");
  const act = make(danger ? "button.danger" : "button.primary", { type: "submit" }, verb);
  const form = make("form.stack", {}, text && make("p.soft", {}, text), fields, problems, make("div.actions", {},
    make("button", { type: "button", on: { click: () => dialog.close() } }, "Cancel"), act));
  const dialog = openWindow(title, [form]);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    act.disabled = true;
    const done = await attempt(problems, async () => {
      const named = [...form.querySelectorAll("input[required]")].every((one) => one.value.trim());
      if (!named) throw new Error("Type a name.");
      await work(form);
      dialog.close();
    }, { reload });
    if (!done) act.disabled = false;
  });
  return dialog;
}

/**
 * Ask the user to choose.
 * @param {string} title - Heading.
 * @param {Array<{name, title, examples, picture, options}>} questions - Options are [value, words]; the first is
 *   preselected. "picture" is an element below the title.
 * @returns {Promise<Object|null>} The chosen values by name; null if the window was closed.
 */
export function choose(title, questions, { text = "", verb = "Continue" } = {}) {
  return new Promise((resolve) => {
    const work = async (form) => resolve(Object.fromEntries(new FormData(form)));
    const dialog = askFor({ title, text, fields: questions.map(questionOf), verb, work });
    dialog.addEventListener("close", () => resolve(null)); // without effect after an answer
  });
}

/** Return a question of "choose" as a group of radio buttons. */
function questionOf({ name, title, examples = [], picture = null, options }) {
  const rest = examples.length - MOST_EXAMPLES;
  return make("fieldset.stack.choose", {},
    make("legend", {}, examples.length ? `${title} (${examples.length})` : title),
    picture,
    examples.length > 0 && make("ul.hint", {},
      examples.slice(0, MOST_EXAMPLES).map((one) => make("li", {}, one)),
      rest > 0 && make("li", {}, `and ${rest} more`)),
    options.map(([value, words], i) => make("label.option", {},
      make("input", { type: "radio", name, value, checked: i === 0 }), make("span", {}, words))));
}

/** Return a class name. If it differs from a class only in case or spaces, ask which is meant; null if cancelled. */
export async function meantName(classes, wanted) {
  const near = classes.find(({ name }) => folded(name) === folded(wanted));
  if (!near || classes.some(({ name }) => name === wanted)) return wanted;
  const answer = await choose("Nearly the same name", [{
    name: "meant", title: `There is already a class “${near.name}”.`, examples: [],
    options: [[near.name, `I mean “${near.name}”`], [wanted, `“${wanted}” is another class`]],
  }]);
  return answer && answer.meant;
}

/** Return a control with a label and a hint. */
export function field(label, control, hint = "") {
  control.id ||= `field-${Math.random().toString(36).slice(2)}`;
  const describing = hint && make("p.hint", { id: `${control.id}-hint` }, hint);
  if (describing) control.setAttribute("aria-describedby", describing.id);
  return make("div.field", {}, make("label", { htmlFor: control.id }, label), control, describing);
}

/** Open a menu below a button. Arrow keys move in it and Escape closes it. */
export function openMenu(button, entries) {
  const items = entries.map(({ words, work, danger }) => make(danger ? "button.danger-text" : "button", {
    type: "button", role: "menuitem", on: { click: () => { close(); work(); } },
  }, words));
  const menu = make("div.menu", { role: "menu", popover: "auto" }, items);
  const close = () => { menu.hidePopover(); button.focus(); };
  menu.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    items[(items.indexOf(document.activeElement) + step + items.length) % items.length].focus();
  });
  menu.addEventListener("toggle", (event) => {
    button.setAttribute("aria-expanded", String(event.newState === "open"));
    if (event.newState === "closed") setTimeout(() => fill(menu) && menu.remove(), 0);
  });
  button.closest("main").append(menu);
  menu.showPopover();
  const box = button.getBoundingClientRect();
  menu.style.top = `${Math.min(box.bottom + 6, innerHeight - menu.offsetHeight - 8)}px`;
  menu.style.left = `${Math.max(8, Math.min(box.right - menu.offsetWidth, innerWidth - menu.offsetWidth - 8))}px`;
  items[0].focus();
}
