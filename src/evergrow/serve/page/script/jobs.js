/* Teach a zip of many images. The service unpacks it; the page shows the progress and can stop it. */

import { ask, modelPath, Problem } from "./api.js";
import { make, plural } from "./dom.js";
import { confirmDone } from "./notice.js";

/**
 * Send a zip with entries class/name.jpg and show the progress until it is learned. If it is stopped, the model does
 * not change.
 * @returns {Promise<number>} Number of learned images.
 */
export async function teachZip(model, zip, name, container) {
  const words = make("p.soft", {}, `Sending ${name}…`);
  const bar = make("progress", { aria: { label: `Progress of ${name}` } });
  const stop = make("button", { type: "button", disabled: true }, "Stop");
  const line = make("div.job", {}, words, bar, stop);
  container.append(line);
  try {
    const once = crypto.randomUUID?.();
    const job = await ask(`${modelPath(model.name)}/jobs`, { body: zip, type: "application/zip", once });
    stop.disabled = false;
    stop.addEventListener("click", () => void ask(`/jobs/${job.id}`, { method: "DELETE" }).catch(() => {}));
    const last = await followed(job, (now) => {
      words.textContent = now.state === "writing" ? "Writing the model…"
        : `Learning ${now.done} of ${now.total}…`;
      Object.assign(bar, { max: Math.max(1, now.total), value: now.done });
    });
    await model.refresh();
    if (last.state === "failed") throw new Problem(last.error ?? "The images could not be learned.", "refused");
    if (last.skipped) container.append(skippedNote(last));
    if (last.state !== "cancelled") return last.done - last.skipped;
    confirmDone("Stopped. The model is unchanged.");
    return 0;
  } finally {
    line.remove();
  }
}

/** Return a list of the images that were left out, with reasons. */
function skippedNote({ skipped, failures }) {
  const more = skipped > failures.length ? make("li", {}, `and ${skipped - failures.length} more`) : null;
  const note = make("details.notice", {}, make("summary", {}, `${plural(skipped, "image")} could not be read`),
    make("ul", {}, failures.map(({ name, reason }) => make("li", {}, `${name}: ${reason}`)), more));
  return note;
}

/** Wait until a job has ended, and report its progress. */
async function followed(job, onProgress) {
  for (let last = job; ; last = await ask(`/jobs/${job.id}`)) {
    onProgress(last);
    if (!["running", "writing"].includes(last.state)) return last;
    await new Promise((done) => { setTimeout(done, 300); });
  }
}
