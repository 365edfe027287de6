/* Messages about problems, shown where they occurred, with a button for what can be done. */

import { action, announce, fill, icon, iconButton, make } from "./dom.js";
import { onReach, Problem, sentence } from "./api.js";

/**
 * Call a function and show its error, if it fails.
 * @param {HTMLElement} place - Element in which errors are shown.
 * @param {function(): Promise} work - The function. "Try again" calls it again.
 * @param {Object} [settings] - reload: function that reads the model again after another client changed it.
 * @returns {Promise<boolean>} Whether it succeeded.
 */
export async function attempt(place, work, { reload = null } = {}) {
  fill(place);
  try {
    await work();
    return true;
  } catch (error) {
    if (error.name === "AbortError") return false;
    if (!(error instanceof Problem) && !(error instanceof Error)) throw error;
    if (error.kind === "stale" && reload) await reload().catch(() => {});
    showProblem(place, error, () => attempt(place, work, { reload }));
    return false;
  }
}

/** Show a problem in an element, with a button to try again if that can help. */
export function showProblem(place, problem, again = null) {
  const stale = problem.kind === "stale";
  const text = stale
    ? "Someone else changed this model, and it was loaded again. Check it, then try again."
    : sentence(problem.message);
  const retry = again && ["stale", "busy", "offline", "token"].includes(problem.kind);
  const clear = () => fill(place);
  fill(place, make("div.notice", { role: "alert", data: { kind: problem.kind ?? "" } }, icon("warning"),
    make("p", {}, text), retry && action(again, "Try again"),
    iconButton("close", "Dismiss this message", clear, { quiet: true })));
  place.closest("form, dialog")?.addEventListener("input", clear, { once: true }); // the user is correcting it
  if (problem.kind === "token") document.dispatchEvent(new CustomEvent("token-wanted"));
}

onReach((now) => { // messages about a missing connection are outdated
  if (now) for (const notice of document.querySelectorAll(".notice[data-kind=offline]")) notice.remove();
});

let leaving = null;

/** Show for some seconds that something was done. */
export function confirmDone(text) {
  const place = document.getElementById("passing");
  fill(place, make("p", {}, icon("check"), text));
  place.classList.add("shown");
  clearTimeout(leaving);
  leaving = setTimeout(() => place.classList.remove("shown"), 4000);
  announce(text);
}
