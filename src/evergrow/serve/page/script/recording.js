/* A button that records from the camera while it is held, by pointer or by key. */

import { icon, make } from "./dom.js";
import * as camera from "./camera.js";
import { fromVideo } from "./imaging.js";

const EVERY = 160; // milliseconds between two frames
const LEAST = 2; // frames of a short press: novelty is calibrated only on classes taught with two or more samples
const MOST = 48;

/**
 * Return the button.
 * @param {function(number)} onFrame - Called with the number of frames so far.
 * @param {function(Array): void} onEnd - Called with the frames.
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
    button.setPointerCapture(event.pointerId); // otherwise a finger that slips off would end the recording
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
