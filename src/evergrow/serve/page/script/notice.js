/* Messages about problems, shown where they occurred, with a button for what can be done. */

import { action, announce, fill, icon, iconButton, make } from "./dom.js";
import { onReach, Problem, sentence } from "./api.js";

const READING_TIME = 8000; // milliseconds until a message that needs no action goes away

/**
 * Call a function and show its error, if it fails.
 * @param {HTMLElement} container - Element in which errors are shown.
 * @param {function(): Promise} work - The function. "Try again" calls it again.
 * @param {Object} [settings] - reload: function that reads the model again after another client changed it.
 * @returns {Promise<boolean>} Whether it succeeded.
 */
export async function attempt(container, work, { reload = null } = {}) {
  fill(container);
  try {
    await work();
    return true;
  } catch (error) {
    if (error.name === "AbortError") return false;
    if (!(error instanceof Problem) && !(error instanceof Error)) throw error;
    if (error.kind === "stale" && reload) await reload().catch(() => {});
    showProblem(container, error, () => attempt(container, work, { reload }));
    return false;
  }
}

/** Show a problem in an element, with a button to try again if that can help. */
export function showProblem(container, problem, again = null) {
  const stale = problem.kind === "stale";
  const text = stale
    ? "Someone else changed this model, and it was loaded again. Check it, then try again."
    : sentence(problem.message);
  const retry = again && ["stale", "busy", "offline", "token"].includes(problem.kind);
  const clear = () => fill(container);
  const notice = make("div.notice", { role: "alert", data: { kind: problem.kind ?? "" } }, icon("warning"),
    make("p", {}, text), retry && action(again, "Try again"),
    iconButton("close", "Dismiss this message", clear, { quiet: true }));
  fill(container, notice);
  if (problem.isPassing) removeLater(notice);
  container.closest("form, dialog")?.addEventListener("input", clear, { once: true }); // the user is correcting it
  if (problem.kind === "token") document.dispatchEvent(new CustomEvent("token-wanted"));
}

/** Remove a message after it could be read, unless the pointer or the focus is in it. */
function removeLater(notice) {
  setTimeout(() => (notice.matches(":hover, :focus-within") ? removeLater(notice) : notice.remove()), READING_TIME);
}

onReach((now) => { // messages about a missing connection are outdated
  if (now) for (const notice of document.querySelectorAll(".notice[data-kind=offline]")) notice.remove();
});

let leaving = null;

/** Show for some seconds that something was done. */
export function confirmDone(text) {
  const container = document.getElementById("passing");
  fill(container, make("p", {}, icon("check"), text));
  container.classList.add("shown");
  clearTimeout(leaving);
  leaving = setTimeout(() => container.classList.remove("shown"), 4000);
  announce(text);
}
