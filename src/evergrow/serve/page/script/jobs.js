/* Large zips: the service unpacks them, the page shows how far it is and can stop it. */

import { ask, modelPath, Problem, send } from "./api.js";
import { make, plural } from "./dom.js";
import { confirmDone } from "./notice.js";

/** Send a zip of class/name.jpg entries and show its progress until it is learned; nothing changes if it is stopped. */
export async function teachZip(model, zip, place) {
  const words = make("p.soft", {}, `Sending ${zip.name}…`);
  const bar = make("progress", { aria: { label: `Progress of ${zip.name}` } });
  const stop = make("button", { type: "button", disabled: true }, "Stop");
  const line = make("div.job", {}, words, bar, stop);
  place.append(line);
  try {
    const once = crypto.randomUUID?.();
    const job = await ask(`${modelPath(model.name)}/jobs`, { body: zip, type: "application/zip", once });
    stop.disabled = false;
    stop.addEventListener("click", () => void ask(`/jobs/${job.id}`, { method: "DELETE" }).catch(() => {}));
    const last = await followed(job, (now) => {
      words.textContent = now.state === "writing" ? "Writing the model…"
        : `Learning ${now.done} of ${now.total} from ${zip.name}…`;
      Object.assign(bar, { max: Math.max(1, now.total), value: now.done });
    });
    await model.refresh();
    if (last.state === "failed") throw new Problem(last.error ?? "The zip could not be learned.", "refused");
    confirmDone(last.state === "cancelled" ? "Stopped. The model is unchanged."
      : `Learned ${plural(last.done - last.skipped, "image")}.`);
    if (last.skipped) place.append(skippedNote(last));
  } finally {
    line.remove();
  }
}

/** Return which images were left out, and why. */
function skippedNote({ skipped, failures }) {
  const more = skipped > failures.length ? make("li", {}, `and ${skipped - failures.length} more`) : null;
  const note = make("details.notice", {}, make("summary", {}, `${plural(skipped, "image")} could not be read`),
    make("ul", {}, failures.map(({ name, reason }) => make("li", {}, `${name}: ${reason}`)), more));
  return note;
}

/** Read the events of a job to the last; with fetch, since an EventSource could send no token. */
async function followed(job, onProgress) {
  const response = await send(`/jobs/${job.id}`, { accept: "text/event-stream" });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let last = job;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return last;
    const events = (rest + value).split(/\r?\n\r?\n/);
    rest = events.pop();
    for (const event of events) {
      const lines = event.split(/\r?\n/).filter((line) => line.startsWith("data:"));
      const data = lines.map((line) => line.slice(5)).join("\n");
      if (!data) continue;
      last = JSON.parse(data);
      onProgress(last);
    }
  }
}
