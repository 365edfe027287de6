/* Images with their classes on the way in: what is doubtful is asked about, and all of them are one change. */

import { make, plural } from "./dom.js";
import { choose } from "./dialogs.js";
import { teachZip } from "./jobs.js";
import { confirmDone } from "./notice.js";
import { complain, readImages } from "./reading.js";
import { folded, labelling } from "./samples.js";
import { zipOf } from "./zip.js";

const READ_HERE = 400; // images that this browser reads itself, so that they show; of more, the service reads a zip
const TOGETHER = 1024; // samples that the service takes as one change

/** What was brought before a model was open for it: the model that is opened next takes it. */
export const brought = { images: null };

/**
 * Teach images as one change. Those without a class go to Review.
 * @param {OpenModel} model - What is taught.
 * @param {Array} images - As intake.js lists them.
 * @param {HTMLElement} place - Where progress is shown.
 * @param {string|null} label - The class of all of them; by default each folder names one.
 */
export async function importImages(model, images, place, label = null) {
  if (!images.length) throw new Error("No image found.");
  const progress = make("p.progress", { role: "status" });
  place.append(progress);
  const tell = (verb) => (done, total) => { progress.textContent = `${verb} ${done} of ${total}…`; };
  try {
    const found = await labelled(model, images, label);
    const settled = found && await withoutDoubt(model, found.named, tell("Looking at"));
    if (!settled) return;
    if (found.loose.length) await toReview(model, found.loose, tell("Reading"));
    if (settled.length > READ_HERE) await teachMany(model, settled, place, tell("Packing"));
    else if (settled.length) await teachSome(model, settled, tell("Reading"));
    else if (!found.loose.length) confirmDone("Nothing new to learn.");
  } finally {
    progress.remove();
  }
}

async function toReview(model, images, tell) {
  const { read, bad } = await readImages(images, tell);
  await model.enqueue(read.map(({ content }) => content));
  confirmDone(`${plural(read.length, "image")} to label under Review.`);
  complain(bad, images.length);
}

async function teachSome(model, settled, tell) {
  const labels = new Map(settled.map(({ image, label }) => [image, label]));
  const { read, bad } = await readImages(settled.map(({ image }) => image), tell);
  const shown = read.map(({ image, content }) => ({ label: labels.get(image), content }));
  const { held, taught } = await model.add(shown, { atOnce: TOGETHER });
  const classes = plural(new Set(labels.values()).size, "class", "classes");
  const kept = held ? ` ${held} more ${held === 1 ? "is" : "are"} kept for testing.` : "";
  if (!model.stalled && taught) confirmDone(`Learned ${plural(taught, "image")} of ${classes}.${kept}`);
  complain(bad, settled.length);
}

async function teachMany(model, settled, place, tell) {
  const taken = new Set();
  const files = settled.map(({ image, label }, i) => {
    const name = image.name.split("/").pop();
    const path = taken.has(`${label}/${name}`) ? `${label}/${i} ${name}` : `${label}/${name}`;
    taken.add(path);
    return { path, packed: image.packed };
  });
  const zip = await zipOf(files, (done) => tell(done, files.length));
  await teachZip(model, zip, plural(files.length, "image"), place);
}

// -- what is asked ---------------------------------------------------------------------------------------------------

/** Return images with their classes, and those that have none; null where people went away. */
async function labelled(model, images, label) {
  const folders = [...new Set(images.map((image) => image.folder).filter(Boolean))];
  const by = (name) => ({ named: images.map((image) => ({ image, label: name })), loose: [] });
  const byFolder = () => ({
    named: images.filter((image) => image.folder).map((image) => ({ image, label: image.folder })),
    loose: images.filter((image) => !image.folder),
  });
  if (label !== null && folders.length < 2) return by(label);
  if (label !== null) {
    const answer = await choose("Several folders", [{
      name: "as", title: `${plural(images.length, "image")} in ${plural(folders.length, "folder")}`,
      examples: folders, options: [["folders", "Each folder is a class"], ["one", `All of them show ${label}`]],
    }]);
    return answer && (answer.as === "one" ? by(label) : byFolder());
  }
  if (folders.length === 1 && !model.classes.some((one) => one.name === folders[0])) {
    const answer = await choose("One folder", [{
      name: "as", title: `${plural(images.length, "image")} in one folder, “${folders[0]}”`, examples: [],
      options: [["class", `They all show ${folders[0]}: teach that class`],
        ["review", "They show different things: I label them under Review"]],
    }]);
    return answer && (answer.as === "class" ? byFolder() : { named: [], loose: images });
  }
  return byFolder();
}

/** Return what is to be taught, after spellings and copies were asked about; null where people went away. */
async function withoutDoubt(model, named, tell) {
  const spelled = await oneSpelling(model, named);
  if (!spelled) return null;
  const marked = [];
  for (const [i, { image, label }] of spelled.entries()) {
    marked.push({ image, label, mark: await image.mark() });
    tell(i + 1, spelled.length);
  }
  return withoutCopies(marked, knownMarks(model));
}

/** Ask about names of classes that differ only in case or spaces. */
async function oneSpelling(model, named) {
  const coming = new Set(named.map(({ label }) => label));
  const all = new Map();
  for (const name of [...model.classes.map((one) => one.name), ...coming]) {
    all.set(folded(name), (all.get(folded(name)) ?? new Set()).add(name));
  }
  const isTrimmed = (name) => name === name.trim();
  const doubtful = [...all.values()].map((names) => [...names].sort((a, b) => isTrimmed(b) - isTrimmed(a)))
    .filter((names) => names.length > 1 && names.some((name) => coming.has(name)));
  if (!doubtful.length) return named;
  const answer = await choose("Names that are nearly the same", doubtful.map((names, i) => ({
    name: `names-${i}`, title: names.map((name) => `“${name}”`).join(" and "), examples: [],
    options: [...names.map((name) => [`as ${name}`, `One class, “${name}”`]), ["apart", "Different classes"]],
  })));
  if (!answer) return null;
  const meant = new Map();
  doubtful.forEach((names, i) => {
    const chosen = answer[`names-${i}`];
    if (chosen !== "apart") for (const name of names) meant.set(name, chosen.slice(3));
  });
  return named.map(({ image, label }) => ({ image, label: meant.get(label) ?? label }));
}

/** Return the classes of images that this browser taught or keeps for testing, by what tells the images apart. */
function knownMarks(model) {
  const labelOf = labelling(model.record);
  const known = new Map();
  for (const sample of model.samples) {
    const label = sample.mark && labelOf(sample);
    if (label) known.set(sample.mark, (known.get(sample.mark) ?? new Set()).add(label));
  }
  return known;
}

/** Ask about the same image that comes twice, that is known already, or that is in two classes. */
async function withoutCopies(marked, known) {
  const classes = new Map([...known].map(([mark, labels]) => [mark, new Set(labels)]));
  for (const { mark, label } of marked) classes.set(mark, (classes.get(mark) ?? new Set()).add(label));
  const seen = new Set();
  const sorts = { two: [], known: [], twice: [], fine: [] };
  for (const one of marked) {
    const key = `${one.mark} ${one.label}`;
    const sort = known.get(one.mark)?.has(one.label) ? "known" : seen.has(key) ? "twice"
      : classes.get(one.mark).size > 1 ? "two" : "fine";
    sorts[sort].push(one);
    seen.add(key);
  }
  const where = ({ image, mark }) => `${image.name}: ${[...classes.get(mark)].join(" and ")}`;
  const questions = [
    { name: "two", title: "The same image in two classes", examples: sorts.two.map(where),
      options: [["skip", "Leave them out"], ["take", "Teach them under both"]] },
    { name: "twice", title: "The same image twice", examples: sorts.twice.map(({ image }) => image.name),
      options: [["skip", "Teach each once"], ["take", "Teach every copy"]] },
    { name: "known", title: "Taught already from this browser", examples: sorts.known.map(({ image }) => image.name),
      options: [["skip", "Do not teach them again"], ["take", "Teach them again"]] },
  ].filter(({ examples }) => examples.length);
  if (!questions.length) return marked;
  const answer = await choose("Before it learns", questions);
  if (!answer) return null;
  const more = questions.filter(({ name }) => answer[name] === "take").flatMap(({ name }) => sorts[name]);
  const taken = new Set([...sorts.fine, ...more]);
  return marked.filter((one) => taken.has(one));
}
