/* Images that are loaded when they become visible and released when they are not. */

import { make } from "./dom.js";
import { contentOf } from "./reading.js";

const PIXELS = 192;
const AT_ONCE = 3; // that are unpacked at the same moment
const wanted = new Map(); // images in sight that wait, by element
const brought = new WeakMap();
let running = 0;

const watcher = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!target.isConnected) watcher.unobserve(target);
    if (isIntersecting && target.isConnected) wanted.set(target, brought.get(target));
    else letGo(target);
  }
  void pump();
}, { rootMargin: "300px" });

function letGo(element) {
  wanted.delete(element);
  if (!element.src) return;
  URL.revokeObjectURL(element.src);
  element.removeAttribute("src");
}

async function pump() {
  if (running >= AT_ONCE || !wanted.size) return;
  const [[element, { image, pixels }]] = wanted;
  wanted.delete(element);
  running += 1;
  try {
    const { blob } = await contentOf(image, pixels);
    if (element.isConnected && !element.src) element.src = URL.createObjectURL(blob);
  } catch {
    element.classList.add("broken"); // its group says why
  }
  running -= 1;
  void pump();
}

/** Return an element that shows an image that was brought while it is in sight. */
export function lazyImage(image, alt, pixels = PIXELS) {
  const element = make("img", { alt, draggable: false });
  brought.set(element, { image, pixels });
  watcher.observe(element);
  return element;
}

/** Watch an element again that was taken out of the page and put back. */
export function watchAgain(element) {
  watcher.unobserve(element);
  watcher.observe(element);
}
