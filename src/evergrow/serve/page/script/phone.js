/* A QR code with the address of this service for phones. Shown if the service runs with --lan. */

import { ask } from "./api.js";
import { fill, iconButton, make } from "./dom.js";
import { openWindow } from "./dialogs.js";

/** Return a button that shows the code. It is hidden if there is none. */
export function phoneButton() {
  const button = iconButton("phone", "Use your phone", () => openCode(), { kind: ".link" });
  button.hidden = true;
  void ask("/lan").then(() => { button.hidden = false; }, () => {});
  return button;
}

function openCode() {
  const code = make("div.code-to-scan");
  const dialog = openWindow("Use your phone", [
    make("p", {}, "Scan this with the camera of a phone in the same network, then open the address."),
    code,
    make("p.hint", {}, "The phone warns once, because this computer made the certificate. Anybody with the code "
      + "can teach and ask for an hour, but cannot delete models."),
  ]);
  let timer = null;
  const show = async () => {
    try {
      const { address, svg, seconds } = await ask("/lan");
      fill(code, make("img", { src: `data:image/svg+xml,${encodeURIComponent(svg)}`, alt: "QR code of the address" }),
        make("p.hint", {}, address.split("#")[0]));
      timer = setTimeout(show, 1000 * Math.max(5, seconds));
    } catch (problem) {
      fill(code, make("p", { role: "alert" }, problem.message));
    }
  };
  dialog.addEventListener("close", () => clearTimeout(timer));
  void show();
}
