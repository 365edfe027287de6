/* A tour of three steps, shown on the first visit. It can be skipped and opened again. */

import { action, fill, make } from "./dom.js";
import { lastingStorage } from "./storage.js";

const SEEN = "evergrow-tour";
const STEPS = [
  ["Show it examples", "Make a model and name a class. Record it with the camera, choose files, or drop a folder with "
    + "one folder per class. A few examples are enough."],
  ["Ask it", "Show it something new: it says what it is, or that it is unknown. If it is wrong, say what it is, and it "
    + "learns that at once. Undo takes anything back."],
  ["Let it sort", "Drop a folder of images under Sort. Correct what is wrong, and download a table or a zip of "
    + "folders."],
];

/** Show the tour unless it was closed in this browser before. */
export function showTour() {
  if (lastingStorage.getItem(SEEN) === null) openTour();
}

/** Return a button that shows the tour again. */
export function tourButton() {
  const button = action(openTour, "How it works");
  button.classList.add("link");
  return button;
}

function openTour() {
  document.querySelector(".tour")?.remove();
  const tour = make("section.tour", { aria: { label: "How it works" }, tabIndex: -1 });
  const close = () => {
    lastingStorage.setItem(SEEN, "seen");
    tour.remove();
  };
  const show = (at) => {
    const [title, words] = STEPS[at];
    const last = at === STEPS.length - 1;
    fill(tour, make("p.soft", {}, `${at + 1} of ${STEPS.length}`), make("h2", {}, title), make("p", {}, words),
      make("div.actions", {}, !last && action(close, "Skip"), at > 0 && action(() => show(at - 1), "Back"),
        make("button.primary", { type: "button", on: { click: () => (last ? close() : show(at + 1)) } },
          last ? "Begin" : "Next")));
    tour.querySelector(".primary").focus({ preventScroll: true });
  };
  tour.addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });
  addEventListener("hashchange", () => tour.remove(), { once: true }); // the user has opened a model
  document.getElementById("main").append(tour);
  show(0);
}
