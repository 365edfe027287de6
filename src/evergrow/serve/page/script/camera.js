/* The camera, shared by the live view and all recordings. */

let stream = null;

/** Gets the event "change" when the camera is turned on or off. */
export const changes = new EventTarget();

/** Whether the camera is on. */
export const isOn = () => stream !== null;

/** The element that shows the camera. Frames are read from it. */
export const video = document.createElement("video");
Object.assign(video, { muted: true, playsInline: true, autoplay: true });
video.setAttribute("aria-label", "Camera");

/** Turn the camera on. Raise an error with a message for people if that fails. */
export async function turnOn() {
  if (stream) return;
  if (!navigator.mediaDevices?.getUserMedia) {
    throw new Error("Browsers allow the camera only on localhost or with https.");
  }
  try {
    const wanted = { width: { ideal: 640 }, height: { ideal: 480 }, facingMode: { ideal: "environment" } };
    stream = await navigator.mediaDevices.getUserMedia({ video: wanted, audio: false });
  } catch (error) {
    throw new Error(whyNot(error));
  }
  for (const track of stream.getTracks()) track.addEventListener("ended", turnOff);
  video.srcObject = stream;
  await video.play();
  changes.dispatchEvent(new Event("change"));
}

/** Turn the camera off. */
export function turnOff() {
  if (!stream) return;
  for (const track of stream.getTracks()) track.stop();
  stream = null;
  video.srcObject = null;
  changes.dispatchEvent(new Event("change"));
}

/** Return the message for an error of getUserMedia. */
function whyNot(error) {
  if (error.name === "NotAllowedError") return "The camera is blocked for this page. Allow it next to the address bar.";
  if (error.name === "NotFoundError") return "No camera found. Drop images instead.";
  if (error.name === "NotReadableError") return "Another program is using the camera.";
  return `The camera could not be turned on: ${error.message}`;
}

/** Return whether a frame can be read. */
export const hasFrame = () => stream !== null && video.videoWidth > 0 && video.readyState >= 2;
