/* Problems in words, beside where they arose, each with what can be done about it. */

import { action, announce, fill, icon, iconButton, make } from "./dom.js";
import { onReach, Problem, sentence } from "./api.js";

/**
 * Do something, and show beside it what went wrong.
 * @param {HTMLElement} place - Where problems of it are shown.
 * @param {function(): Promise} work - What to do; it may be done again.
 * @param {Object} [settings] - reload: how to read the model again after someone else changed it.
 * @returns {Promise<boolean>} Whether it went well.
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

/** Show a problem, with a button to try again where that makes sense. */
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
  place.closest("form, dialog")?.addEventListener("input", clear, { once: true }); // what was wrong is being changed
  if (problem.kind === "token") document.dispatchEvent(new CustomEvent("token-wanted"));
}

onReach((now) => { // what could not be done for want of a connection can be done now
  if (now) for (const notice of document.querySelectorAll(".notice[data-kind=offline]")) notice.remove();
});

let leaving = null;

/** Say in passing that something was done. */
export function confirmDone(text) {
  const place = document.getElementById("passing");
  fill(place, make("p", {}, icon("check"), text));
  place.classList.add("shown");
  clearTimeout(leaving);
  leaving = setTimeout(() => place.classList.remove("shown"), 4000);
  announce(text);
}
