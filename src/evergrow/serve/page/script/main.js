/* Start of the page: shows the view for the address, and banners above it. */

import { ask, isReachable, onReach, Problem, token } from "./api.js";
import { announce, fill, make, plural } from "./dom.js";
import { turnOff } from "./camera.js";
import { ModelView } from "./modelview.js";
import { showModels } from "./modelsview.js";
import { OpenModel } from "./openmodel.js";
import { guardLeaving } from "./leaving.js";
import { showProblem } from "./notice.js";
import { isFull, isLasting } from "./store.js";

const LOOK_AGAIN = 4000; // milliseconds between checks for changes by other clients
const MEMORY_ONLY = "This browser does not let this page keep anything (a private window, or blocked site data). "
  + "Images and corrections are lost when you close or reload the page.";
const NO_ROOM = "This browser has no room left. Teaching works, but new examples disappear from this page "
  + "when you close or reload it. Remove images that you do not need, or free some space.";
const main = document.getElementById("main");
const banner = document.getElementById("banner");
const where = document.getElementById("where");
let model = null;
let tokenWanted = false;

/** Show the view for the address: #/ lists all models, #/m/NAME opens a model. */
async function route(event = null) {
  model?.close();
  model = null;
  for (const dialog of document.querySelectorAll("dialog[open]")) if (event) dialog.close();
  const name = nameInAddress();
  fill(where);
  fill(main, make("p.empty", { role: "status" }, "Loading…"));
  document.title = name ? `${name} · evergrow` : "evergrow";
  try {
    if (name === null) {
      turnOff();
      await showModels(main);
    } else {
      const opened = new OpenModel(name);
      opened.readOnly = (await ask("/models")).read_only;
      await opened.load();
      model = opened;
      model.addEventListener("change", showBanner);
      new ModelView(model, main, where).show();
    }
    announce(name ? `${name} is open` : "Models");
    if (event) main.focus({ preventScroll: true }); // so that keyboard users continue here
  } catch (error) {
    const problems = make("div.problems");
    fill(main, make("div.page.stack", {}, problems, make("p", {}, make("a", { href: "#/" }, "All models"))));
    showProblem(problems, error, () => route());
  }
  showBanner();
}

/** Store the token of a QR code and remove it from the address, so that the history does not keep it. */
function takeToken() {
  const given = location.hash.match(/^#token=(.+)$/);
  if (!given) return;
  token.set(decodeURIComponent(given[1]));
  history.replaceState(null, "", "#/");
}

/** Return the name of the model in the address; null for the list. A malformed name is not decoded. */
function nameInAddress() {
  const written = location.hash.startsWith("#/m/") ? location.hash.slice(4) : null;
  try {
    return written && decodeURIComponent(written);
  } catch {
    return written;
  }
}

/** Show a banner if there is no connection or no token. */
function showBanner() {
  const waiting = model?.samples.filter((sample) => sample.waiting && !sample.held).length ?? 0;
  const state = `${isReachable()} ${tokenWanted} ${waiting} ${model?.stalled?.kind} ${isLasting()} ${isFull()}`;
  if (banner.dataset.state === state) return; // otherwise a token that is being typed would be lost
  banner.dataset.state = state;
  if (tokenWanted) fill(banner, tokenForm());
  else if (!isReachable()) {
    const kept = waiting
      ? ` ${plural(waiting, "example waits", "examples wait")} in this browser until the service is back.` : "";
    fill(banner, make("p", {}, `The service cannot be reached. Trying again every few seconds.${kept}`));
  } else if (model?.stalled?.kind === "busy") {
    fill(banner, make("p", {}, `${model.stalled.message} Trying again.`));
  } else if (!isLasting()) fill(banner, make("p", {}, MEMORY_ONLY));
  else if (isFull()) fill(banner, make("p", {}, NO_ROOM));
  else fill(banner);
}

function tokenForm() {
  const input = make("input", { type: "password", id: "token", autocomplete: "off", required: true });
  const form = make("form.row", {
    on: {
      submit: (event) => {
        event.preventDefault();
        token.set(input.value.trim());
        tokenWanted = false;
        for (const notice of document.querySelectorAll(".notice[data-kind=token]")) notice.remove();
        void (model ? model.teachWaiting().then(lookAgain) : route());
        showBanner();
      },
    },
  }, make("label", { htmlFor: "token" }, "This service needs a token"), input,
  make("button.primary", { type: "submit" }, "Continue"));
  setTimeout(() => input.focus(), 0);
  return form;
}

/** Check for changes by other clients, again and again. */
async function lookAgain() {
  if (document.hidden && isReachable()) return;
  try {
    if (model) await model.refresh();
    else if (!isReachable()) await ask("/models");
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    if (error.kind === "token" && !tokenWanted) document.dispatchEvent(new CustomEvent("token-wanted"));
  }
}

/** Tell the style how much room the banner takes at the top of the window. */
function watchBanner() {
  const measure = () => document.documentElement.style.setProperty("--below-banner", `${banner.offsetHeight}px`);
  new ResizeObserver(measure).observe(banner);
}

document.addEventListener("token-wanted", () => {
  tokenWanted = true;
  showBanner();
});
document.addEventListener("memory-only", showBanner);
document.addEventListener("store-full", showBanner);
guardLeaving(() => (isFull() || !isLasting()) && Boolean(model?.samples.some((sample) => sample.waiting)));
onReach((now) => {
  showBanner();
  announce(now ? "The service is back" : "The service cannot be reached", { urgent: !now });
  if (now && model) void model.teachWaiting();
  else if (now && !main.querySelector(".models")) void route();
});
addEventListener("hashchange", (event) => { takeToken(); void route(event); });
addEventListener("online", lookAgain);
// Otherwise the browser would open a file that is dropped beside its target.
for (const event of ["dragover", "drop"]) addEventListener(event, (dropped) => dropped.preventDefault());
setInterval(lookAgain, LOOK_AGAIN);
watchBanner();
takeToken();
void route();
