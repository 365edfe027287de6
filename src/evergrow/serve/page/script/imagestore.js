/*
 * Test images and the review queue, stored in this browser or, if the owner wants, on the server.
 *
 * Samples that are stored on the server have a keptId. They are read again when a view opens, and are not stored in
 * this browser.
 */

import { ask, modelPath, Problem, send } from "./api.js";
import { drop, keep } from "./store.js";
import { bodyOf, countOf, labelling, newSample, presentEvent } from "./samples.js";

const AT_ONCE = 32;
let lastId = 0; // the latest id of a sample from the server; ids count down

const pathOf = (model, rest = "") => `${modelPath(model.name)}/kept${rest}`;

/** Return a sentence about where the n images of a set ("test" or "review") are stored. */
export function whereKept(model, n, set) {
  if (!n) return "";
  const here = set === "test" ? "used for testing" : "waiting here";
  const what = `The ${countOf(model.kind, n)} ${here} ${n === 1 ? "is" : "are"} kept`;
  if (model.kept?.on) return `${what} on the server: everybody who uses this model sees the same.`;
  return `${what} in this browser only.${set === "test" ? " On another computer the accuracy may be different." : ""}`;
}

/** Read the images on the server, and send it test and review images that are only in this browser. */
export async function syncKept(model) {
  if (model.kind !== "images" || model.closed) return;
  model.syncing = (model.syncing ?? Promise.resolve()).then(() => sync(model)).catch((problem) => {
    if (!(problem instanceof Problem)) throw problem; // tried again when a view opens
  });
  await model.syncing;
}

/** Make the samples of a model agree with the images on the server. */
async function sync(model) {
  model.kept = await ask(pathOf(model));
  if (model.kept.on && !model.readOnly) await sendOwn(model);
  const known = new Map(model.samples.filter((one) => one.keptId).map((one) => [one.keptId, one]));
  const there = new Set(model.kept.images.map((one) => one.id));
  model.samples = model.samples.filter((one) => !one.keptId || there.has(one.keptId));
  for (const { id, set, label } of model.kept.images) {
    const sample = known.get(id) ?? await fetched(model, id);
    Object.assign(sample, { held: set === "test", queued: set === "review", keptLabel: label });
    if (!known.has(id)) model.samples.push(sample);
  }
  model.arrange();
}

/** Return an image on the server as a sample. */
async function fetched(model, id) {
  const blob = await (await send(pathOf(model, `/${id}`))).blob();
  lastId -= 1;
  return { ...newSample(model.name, { blob }, null), id: lastId, keptId: id };
}

/** Move test and review images from this browser to the server. */
async function sendOwn(model) {
  const labelOf = labelling(model.record);
  const own = model.samples.filter((one) => !one.keptId && !one.waiting);
  const sets = {
    test: own.filter((one) => one.held && labelOf(one) !== null), review: own.filter((one) => one.queued),
  };
  for (const [set, samples] of Object.entries(sets)) {
    for (let at = 0; at < samples.length; at += AT_ONCE) {
      const part = samples.slice(at, at + AT_ONCE);
      const labels = set === "test" ? { labels: part.map(labelOf) } : {};
      model.kept = await ask(pathOf(model), bodyOf("images", part, { set, ...labels }));
      await drop(part);
      model.samples = model.samples.filter((one) => !part.includes(one));
    }
  }
}

/** Switch storage on the server on or off. Switching it off moves the images to this browser. */
export async function keepOnServer(model, on) {
  await ask(pathOf(model), { method: "PUT", json: { on } });
  if (!on) {
    const kept = model.samples.filter((one) => one.keptId);
    for (const sample of kept) {
      if (sample.held) sample.events = [presentEvent(model.record, sample.keptLabel)];
      sample.wanted = sample.keptLabel;
      makeOwn(sample);
    }
    await keep(kept);
  }
  await syncKept(model);
}

/** Make a sample of the server one of this browser. */
function makeOwn(sample) {
  delete sample.id;
  delete sample.keptId;
  delete sample.keptLabel;
}

/** Move samples from the server to this browser. Return those that another client has already taken. */
export async function takeOver(model, samples) {
  const late = [];
  for (const sample of samples.filter((one) => one.keptId)) {
    const id = sample.keptId;
    makeOwn(sample);
    if (!(await removed(model, id))) late.push(sample);
  }
  return late;
}

/** Remove samples from the server. */
export async function removeKept(model, samples) {
  for (const sample of samples) if (sample.keptId) await removed(model, sample.keptId);
}

/** Remove an image from the server. Return false if it was not there. */
async function removed(model, id) {
  try {
    await send(pathOf(model, `/${id}`), { method: "DELETE" });
    return true;
  } catch (problem) {
    if (problem.status === 404) return false;
    throw problem;
  }
}

/** Evaluate on the test images of the server. Return { tested, labels, predicted } as OpenModel.evaluate does. */
export async function evaluateKept(model, samples) {
  const { ids, predicted } = await ask(pathOf(model, "/evaluation"));
  const answers = new Map(ids.map((id, i) => [id, predicted[i]]));
  const tested = samples.filter((one) => answers.has(one.keptId));
  return {
    tested, labels: tested.map((one) => one.keptLabel), predicted: tested.map((one) => answers.get(one.keptId)),
  };
}
