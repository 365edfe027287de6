/* Images that are loaded when they become visible and released when they are not. */

import { make } from "./dom.js";
import { contentOf } from "./reading.js";

const PIXELS = 192;
const AT_ONCE = 3; // images that are unpacked at the same time
const wanted = new Map(); // images that are visible and not loaded yet, by element
const brought = new WeakMap(); // all images, by element
let running = 0;

const watcher = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!target.isConnected) watcher.unobserve(target);
    if (isIntersecting && target.isConnected) wanted.set(target, brought.get(target));
    else letGo(target);
  }
  void pump();
}, { rootMargin: "300px" });

/** Release the image of an element. */
function letGo(element) {
  wanted.delete(element);
  if (!element.src) return;
  URL.revokeObjectURL(element.src);
  element.removeAttribute("src");
}

/** Load the next image, then the one after it. */
async function pump() {
  if (running >= AT_ONCE || !wanted.size) return;
  const [[element, { image, pixels }]] = wanted;
  wanted.delete(element);
  running += 1;
  try {
    const { blob } = await contentOf(image, pixels);
    if (element.isConnected && !element.src) element.src = URL.createObjectURL(blob);
  } catch {
    element.classList.add("broken"); // its group shows the reason
  }
  running -= 1;
  void pump();
}

/** Return an element that shows an image while it is visible. */
export function lazyImage(image, alt, pixels = PIXELS) {
  const element = make("img", { alt, draggable: false });
  brought.set(element, { image, pixels });
  watcher.observe(element);
  return element;
}

/** Watch an element again after it was removed from the page and inserted again. */
export function watchAgain(element) {
  watcher.unobserve(element);
  watcher.observe(element);
}
