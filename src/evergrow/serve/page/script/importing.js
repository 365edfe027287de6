/* Teach many images as one change, after questions about unclear ones. */

import { make, plural } from "./dom.js";
import { choose } from "./dialogs.js";
import { countShared, foldersOf, folderTree } from "./foldertree.js";
import { teachZip } from "./jobs.js";
import { confirmDone } from "./notice.js";
import { complain, readImages } from "./reading.js";
import { syncKept } from "./imagestore.js";
import { guardLeaving } from "./leaving.js";
import { countToHold, folded, labelling, newSample, presentEvent, raiseRefused } from "./samples.js";
import { keep, keepSettings } from "./store.js";
import { zipOf } from "./zip.js";

const READ_HERE = 400; // number of images up to which this browser reads and stores them; more are sent as a zip
const TOGETHER = 1024; // maximum number of samples per request
const SHOWN_AT_ONCE = 32; // images that are read before the queue is updated
const IMPORTS = 20; // large imports whose images are recognised later
const TESTS = 200; // maximum number of images of a zip that are held out for testing

/** Images that were brought before a model was open. The next model that is opened takes them. */
export const brought = { images: null };

/**
 * Teach images as one change, after questions about unclear ones. Images without a class go to Review.
 * @param {OpenModel} model - The model.
 * @param {Array} images - Images from inputs.js.
 * @param {HTMLElement} container - Element in which progress is shown.
 * @param {string|null} label - Class of all images. Default: the name of the folder of each.
 */
export async function importImages(model, images, container, label = null) {
  const progress = make("p.progress", { role: "status" });
  container.append(progress);
  const progressOf = (verb) => (done, total) => {
    progress.textContent = done < total ? `${verb} ${done} of ${total}…` : "";
  };
  const stopGuarding = guardLeaving(() => true); // closing the page would lose what was read
  try {
    const found = await labelled(model, images, label);
    const settled = found && await withoutDoubt(model, found.named, progressOf("Looking at"));
    if (!settled) {
      confirmDone("Nothing was taught.");
      return;
    }
    if (found.loose.length) await toReview(model, found.loose, progressOf("Reading"));
    if (settled.length > READ_HERE) await teachMany(model, settled, container, progressOf("Packing"));
    else if (settled.length) await teachSome(model, settled, progressOf("Reading"));
    else if (!found.loose.length) confirmDone("Nothing new to learn.");
  } finally {
    stopGuarding();
    progress.remove();
  }
}

/** Add images to the review queue, except those that are in it or were taught already. */
export async function toReview(model, images, onProgress = () => {}) {
  const known = new Set([...knownMarks(model).keys(), ...model.queue.map((one) => one.mark)]);
  const fresh = [];
  for (const image of images) {
    const mark = await image.mark();
    if (!known.has(mark)) fresh.push(image);
    known.add(mark);
  }
  const bad = [];
  for (let at = 0; at < fresh.length; at += SHOWN_AT_ONCE) {
    const part = await readImages(fresh.slice(at, at + SHOWN_AT_ONCE), (n) => onProgress(at + n, fresh.length));
    await model.enqueue(part.read.map(({ content }) => content));
    bad.push(...part.bad);
  }
  const left = images.length - fresh.length;
  const rest = left ? ` ${left} ${left === 1 ? "was" : "were"} here or taught already.` : "";
  confirmDone(`${plural(fresh.length - bad.length, "image")} to label under Review.${rest}`);
  complain(bad, images.length);
}

/** Teach images that this browser reads and stores. */
async function teachSome(model, settled, onProgress) {
  const labels = new Map(settled.map(({ image, label }) => [image, label]));
  const { read, bad } = await readImages(settled.map(({ image }) => image), onProgress);
  const shown = read.map(({ image, content }) => ({ label: labels.get(image), content }));
  const { held, taught, samples } = await model.add(shown, { atOnce: TOGETHER });
  raiseRefused(model.kind, samples);
  const classes = plural(new Set(labels.values()).size, "class", "classes");
  const kept = held ? ` ${held} more ${held === 1 ? "is" : "are"} kept for testing.` : "";
  if (!model.stalled && taught) model.dispatchEvent(new Event("imported")); // labels are checked now
  if (!model.stalled && taught) confirmDone(`Learned ${plural(taught, "image")} of ${classes}.${kept}`);
  complain(bad, settled.length);
}

/** Teach images as a zip, except for those held out for testing. This browser stores only marks of taught ones. */
async function teachMany(model, settled, container, onProgress) {
  const tests = new Set(testsOf(model, settled));
  const taught = settled.filter((one) => !tests.has(one));
  const taken = new Set();
  const files = taught.map(({ image, label }, i) => {
    const name = image.name.split("/").pop();
    const path = taken.has(`${label}/${name}`) ? `${label}/${i} ${name}` : `${label}/${name}`;
    taken.add(path);
    return { path, packed: image.packed };
  });
  const zip = await zipOf(files, (done) => onProgress(done, files.length));
  const learned = await teachZip(model, zip, plural(files.length, "image"), container);
  if (!learned) return;
  const event = presentEvent(model.record, null);
  const marks = taught.map(({ mark, label }) => [mark, label]);
  model.settings.imported = [...model.settings.imported, { event, marks }].slice(-IMPORTS);
  await keepSettings(model.settings);
  const labels = new Map([...tests].map(({ image, label }) => [image, label]));
  const { read } = await readImages([...labels.keys()]);
  await addTests(model, read.map(({ image, content }) => ({ label: labels.get(image), content })));
  const kept = read.length ? `${read.length} more are kept for testing.` : "This browser keeps none of the images.";
  confirmDone(`Learned ${plural(learned, "image")}. ${kept}`);
}

/** Store samples for testing. The model must have their classes. */
async function addTests(model, shown) {
  const samples = shown.map(({ label, content }) => ({
    ...newSample(model.name, content, label), held: true, events: [presentEvent(model.record, label)],
  }));
  await keep(samples);
  model.samples.push(...samples);
  model.arrange();
  if (model.kept?.on) await syncKept(model);
}

/** Return the images to hold out: the chosen share of each class, but at most TESTS in all. */
function testsOf(model, settled) {
  const classes = new Map();
  for (const one of settled) classes.set(one.label, [...(classes.get(one.label) ?? []), one]);
  const most = Math.max(1, Math.floor(TESTS / classes.size));
  return [...classes.values()].flatMap((members) => {
    const n = Math.min(most, countToHold(model.settings.share, 0, 0, members.length));
    return n ? members.slice(-n) : [];
  });
}

// -- what is asked ---------------------------------------------------------------------------------------------------

/** Find the classes of images, with a question if folders are unclear. Return { named, loose }, null if cancelled. */
async function labelled(model, images, label) {
  const { outer, inner } = classesByFolder(images);
  const folders = namesIn(inner);
  const byFolder = (names) => withClasses(images, (image) => names.get(image));
  if (label !== null) {
    const byLabel = withClasses(images, () => label);
    if (folders.length < 2) return byLabel;
    const title = `${plural(images.length, "image")} in ${plural(folders.length, "folder")}`;
    const answer = await askOne("Several folders", title, [
      ["folders", "Each folder is a class"], ["one", `All of them show ${label}`],
    ], { examples: folders });
    return answer && (answer === "one" ? byLabel : byFolder(inner));
  }
  const [only] = folders;
  if (folders.length === 1 && !model.classes.some((one) => one.name === only)) {
    const answer = await askOne("One folder", `${plural(images.length, "image")} in one folder, “${only}”`, [
      ["class", `They all show ${only}: teach that class`],
      ["review", "They show different things: I label them under Review"],
    ]);
    return answer && (answer === "class" ? byFolder(inner) : { named: [], loose: images });
  }
  if (images.every((image) => outer.get(image) === inner.get(image))) {
    return withoutParts(model, byFolder(inner));
  }
  const question = "Which folders name what the images show?";
  const answer = await askOne("Folders inside folders", question, levelsOf(namesIn(outer), folders), {
    picture: folderTree(images),
  });
  return answer && byFolder(answer === "outer" ? outer : inner);
}

/** Divide images into those with a class and those without. "classOf" returns the class of an image, or "". */
function withClasses(images, classOf) {
  const named = images.map((image) => ({ image, label: classOf(image) })).filter((one) => one.label);
  return { named, loose: images.filter((image) => !classOf(image)) };
}

/** Ask one question. Return the chosen value, null if cancelled. "picture" is an element below the question. */
async function askOne(title, question, options, { examples = [], picture = null } = {}) {
  const answer = await choose(title, [{ name: "as", title: question, examples, picture, options }]);
  return answer && answer.as;
}

/** Return the choice between outer and inner folders as options, the likely one first. */
function levelsOf(outer, inner) {
  const listed = (names) => `${names.slice(0, 3).join(", ")}${names.length > 3 ? "…" : ""}`;
  const classes = (names) => `${listed(names)} (${plural(names.length, "class", "classes")})`;
  const options = [["outer", `The outer folders are the classes: ${classes(outer)}`],
    ["inner", `The inner folders are the classes: ${classes(inner)}`]];
  return outer.every((name) => PARTS.test(name)) ? options.reverse() : options;
}

const PARTS = /^(train(ing)?|test(ing)?|val(id(ation)?)?)$/i; // usual names of parts of a data set, not of classes

/** Ask about folders named like a part of a data set. Return { named, loose }, null if cancelled. */
async function withoutParts(model, { named, loose }) {
  const known = new Set(model.classes.map((one) => one.name));
  const parts = [...new Set(named.map(({ label }) => label))].filter((name) => PARTS.test(name) && !known.has(name));
  if (!parts.length) return { named, loose };
  const quoted = parts.map((name) => `“${name}”`).join(" and ");
  const question = `${quoted} ${parts.length > 1 ? "are usual names" : "is a usual name"} of a part of a data set`;
  const answer = await askOne("Not a class?", question, [
    ["review", "Its images show different things: I label them under Review"],
    ["class", "It is a class: teach it"],
  ]);
  if (answer !== "review") return answer && { named, loose };
  const isPart = ({ label }) => parts.includes(label);
  return {
    named: named.filter((one) => !isPart(one)),
    loose: [...loose, ...named.filter(isPart).map(({ image }) => image)],
  };
}

const namesIn = (names) => [...new Set(names.values())].filter(Boolean);

/**
 * Return the class of each image by its folders, as two Maps. outer: the first folder that not all images share, as in
 * the commands. inner: the last folder. An image beside the class folders has the class "".
 */
function classesByFolder(images) {
  const paths = images.map(foldersOf);
  const shared = countShared(paths);
  const isOne = paths.every((path) => path.length === shared); // a single folder is a class
  const by = (nameOf) => new Map(images.map((image, i) => [image, nameOf(paths[i]) ?? ""]));
  if (isOne) return { outer: by((path) => path.at(-1)), inner: by((path) => path.at(-1)) };
  return { outer: by((path) => path[shared]), inner: by((path) => path.slice(shared).at(-1)) };
}

/** Ask about spellings and copies. Return the images to teach, null if cancelled. */
async function withoutDoubt(model, named, onProgress) {
  const spelled = await oneSpelling(model, named);
  return spelled && settleCopies(model, spelled, onProgress);
}

/** Ask about copies. Return the images to teach with their marks, null if cancelled. */
export async function settleCopies(model, named, onProgress = () => {}) {
  const marked = [];
  for (const [i, { image, label }] of named.entries()) {
    marked.push({ image, label, mark: await image.mark() });
    onProgress(i + 1, named.length);
  }
  return withoutCopies(marked, knownMarks(model));
}

/** Ask about class names that differ only in case or spaces. Return the images with the chosen names, or null. */
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

/** Return the classes of images that this browser taught or holds out: a Map of marks to Sets of classes. */
function knownMarks(model) {
  const labelOf = labelling(model.record);
  const known = new Map();
  const note = (mark, label) => { if (label) known.set(mark, (known.get(mark) ?? new Set()).add(label)); };
  for (const sample of model.samples) if (sample.mark) note(sample.mark, labelOf(sample));
  for (const { event, marks } of model.settings.imported) {
    for (const [mark, label] of marks) note(mark, labelOf({ events: [{ ...event, label }] }));
  }
  return known;
}

/** Ask about images that occur twice, are taught already, or are in two classes. Return those to teach, or null. */
async function withoutCopies(marked, known) {
  const classes = new Map([...known].map(([mark, labels]) => [mark, new Set(labels)]));
  for (const { mark, label } of marked) classes.set(mark, (classes.get(mark) ?? new Set()).add(label));
  const sorts = sortCopies(marked, known, classes);
  const where = ({ image, mark }) => `${image.name}: ${[...classes.get(mark)].join(" and ")}`;
  const nameOf = ({ image }) => image.name;
  const questions = [
    { name: "two", title: "The same image in two classes", examples: sorts.two.map(where),
      options: [["skip", "Leave them out"], ["take", "Teach them under both"]] },
    { name: "twice", title: "The same image twice", examples: sorts.twice.map(nameOf),
      options: [["skip", "Teach each once"], ["take", "Teach every copy"]] },
    { name: "known", title: "Taught already from this browser", examples: sorts.known.map(nameOf),
      options: [["skip", "Do not teach them again"], ["take", "Teach them again"]] },
  ].filter(({ examples }) => examples.length);
  if (!questions.length) return marked;
  const answer = await choose("Before the model learns", questions);
  if (!answer) return null;
  const more = questions.filter(({ name }) => answer[name] === "take").flatMap(({ name }) => sorts[name]);
  const taken = new Set([...sorts.fine, ...more]);
  return marked.filter((one) => taken.has(one));
}

/**
 * Divide images by what must be asked about them.
 * @param {Array<{image, label, mark}>} marked - The images.
 * @param {Map<string, Set>} known - Classes of taught images by mark.
 * @param {Map<string, Set>} classes - Classes of all images by mark.
 * @returns {Object} known: taught already in this class. twice: occurs before in this class. two: in several classes.
 *   fine: all others.
 */
function sortCopies(marked, known, classes) {
  const sorts = { two: [], known: [], twice: [], fine: [] };
  const seen = new Set();
  const sortOf = ({ mark, label }) => {
    if (known.get(mark)?.has(label)) return "known";
    if (seen.has(`${mark} ${label}`)) return "twice";
    return classes.get(mark).size > 1 ? "two" : "fine";
  };
  for (const one of marked) {
    sorts[sortOf(one)].push(one);
    seen.add(`${one.mark} ${one.label}`);
  }
  return sorts;
}
