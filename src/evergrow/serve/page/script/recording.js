/* A button that records from the camera for as long as it is held, by pointer or by key. */

import { icon, make } from "./dom.js";
import * as camera from "./camera.js";
import { fromVideo } from "./imaging.js";

const EVERY = 160; // milliseconds between two frames
const LEAST = 2; // a short press takes two: unknown things are calibrated on classes that came with two at least
const MOST = 48;

/**
 * Return the button.
 * @param {function(number)} onFrame - Called with the number of frames so far.
 * @param {function(Array): void} onEnd - Called with what was recorded.
 * @param {function(Error)} onProblem - Called when the camera cannot be turned on.
 */
export function holdButton(name, { onFrame, onEnd, onProblem }) {
  let held = false;
  let running = false;
  const words = make("span", {}, "Hold to record");
  const button = make("button.hold", { type: "button", aria: { label: `Hold to record ${name} from the camera` } },
    icon("camera"), words);

  async function begin() {
    if (running) return;
    held = true;
    running = true;
    const frames = [];
    try {
      await camera.turnOn();
      button.classList.add("recording");
      while ((held || frames.length < LEAST) && frames.length < MOST && camera.isOn()) {
        if (camera.hasFrame()) {
          frames.push(await fromVideo(camera.video));
          words.textContent = `Recording ${frames.length}`;
          onFrame(frames.length);
        }
        await new Promise((resolve) => setTimeout(resolve, EVERY));
      }
    } catch (error) {
      onProblem(error);
    } finally {
      running = false;
      button.classList.remove("recording");
      words.textContent = "Hold to record";
      if (frames.length) onEnd(frames);
    }
  }
  const end = () => { held = false; };
  button.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    button.setPointerCapture(event.pointerId); // else a finger that slips off would end it
    void begin();
  });
  for (const event of ["pointerup", "pointercancel", "blur", "lostpointercapture"]) button.addEventListener(event, end);
  button.addEventListener("contextmenu", (event) => event.preventDefault());
  button.addEventListener("keydown", (event) => {
    if (![" ", "Enter"].includes(event.key)) return;
    event.preventDefault();
    if (!event.repeat) void begin();
  });
  button.addEventListener("keyup", (event) => { if ([" ", "Enter"].includes(event.key)) end(); });
  return button;
}
