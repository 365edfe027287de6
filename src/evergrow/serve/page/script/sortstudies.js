/* Group sorted images that look unknown, and compare sorted images with the taught ones. */

import { ask } from "./api.js";
import { fill, make, plural } from "./dom.js";
import { lazyImage } from "./lazy.js";
import { attempt } from "./notice.js";
import { contentOf } from "./reading.js";
import { bodyOf } from "./samples.js";
import { groupOfClass } from "./sorting.js";
import { MOST, openGroups } from "./unlabelled.js";

const COMPARED = 100; // known images that are sent too, so that their similarity sets the size of groups

const MANY_UNKNOWN = 0.1; // fraction of unknown images above which they are named first; 0.05 are expected
const FEWEST = 3; // images; the service compares classes of at least so many

/** Maximum number of unknown images that are grouped at once. */
export const MOST_GROUPED = MOST - COMPARED;

/** Show groups of similar unknown images. A group that gets a name is moved to that class and taught. */
export function groupUnknown(view) {
  return attempt(view.problems, async () => {
    view.bar.group.disabled = true;
    try {
      const unknown = view.unknown().slice(0, MOST_GROUPED);
      const items = [...unknown, ...view.known().slice(0, COMPARED)];
      const things = [];
      for (const [i, { image }] of items.entries()) {
        const look = () => lazyImage(image, "Unknown");
        things.push({ content: await contentOf(image), isUnknown: i < unknown.length, look });
      }
      await openGroups(view.model, things, async (indices, name) => {
        const chosen = indices.map((i) => items[i]);
        view.move(chosen, groupOfClass(name));
        if (!(await view.teachItems(chosen))) throw new Error("Nothing was taught.");
      });
    } finally {
      view.showState();
    }
  });
}

/** Says which classes of the sorted images look different from the taught ones. */
export class Comparison {
  /** @param {SortView} view - The view with the images. */
  constructor(view) {
    this.view = view;
    this.element = make("p", { role: "status" });
    this.state = ""; // what was compared; the result is removed when that changes
  }

  /** Return a text that changes with the model and with the images. */
  get present() {
    const { items, model } = this.view;
    return `${model.record.revision} ${items.map(({ id, moved }) => `${id} ${moved}`).join()}`;
  }

  /** Remove the result if the model or the images have changed since. */
  dropIfOutdated() {
    if (!this.state || this.state === this.present) return;
    this.state = "";
    fill(this.element);
  }

  /** Compare the images with the taught ones and show the result. */
  run() {
    const { view } = this;
    return attempt(view.problems, async () => {
      view.bar.compare.disabled = true;
      this.state = this.present;
      fill(this.element, "Comparing…");
      try {
        const { state } = this;
        const words = await this.resultInWords();
        if (this.state === state) fill(this.element, words);
      } catch (error) {
        fill(this.element);
        throw error;
      } finally {
        view.showState();
      }
    });
  }

  /** Compare the images, without the unknown ones if there are many. Return the result as a sentence. */
  async resultInWords() {
    const { view } = this;
    const readable = view.items.filter((item) => item.done && !item.error);
    const unknown = new Set(view.unknown());
    const hasMany = unknown.size > MANY_UNKNOWN * readable.length;
    const compared = hasMany ? readable.filter((item) => !unknown.has(item)) : readable;
    const warning = hasMany ? `${unknown.size} of ${plural(readable.length, "image")} look like nothing that was `
      + "taught: see Unknown. " : "";
    if (hasMany && compared.length < FEWEST) return `${warning}Too few others are left to compare.`;
    const sent = [];
    for (const { image } of compared.slice(0, MOST)) sent.push(await contentOf(image));
    const { classes } = await ask(`${view.model.path}/drift`, bodyOf(view.model.kind, sent));
    return warning + (hasMany ? "The others: " : "") + differencesInWords(classes);
  }
}

/** Return sentences about which classes look different from the taught images. */
function differencesInWords(classes) {
  const changed = classes.filter((one) => one.changed).map((one) => one.name);
  const compared = `${plural(classes.length, "class", "classes")} compared`;
  if (!changed.length) return `${compared}: all look like the taught images.`;
  const listed = changed.slice(0, 5).join(", ") + (changed.length > 5 ? " and others" : "");
  return `${compared}: ${changed.length} ${changed.length === 1 ? "looks" : "look"} different from the taught images `
    + `(${listed}). Check them, and teach some. About one class in twenty is a false alarm.`;
}
