/* Messages about the images that Sort keeps in this browser, and how to discard them. */

import { action, fill, icon, make, plural } from "./dom.js";
import { askFor } from "./dialogs.js";
import { attempt, confirmDone } from "./notice.js";

/** Return a sentence about images that a reload would lose; "" if there are none. */
function lossOf({ images, corrections }, total) {
  if (corrections) {
    return `${plural(corrections, "correction")} cannot be kept in this browser. `
      + "Teach before you close or reload this page.";
  }
  if (!images) return "";
  return `No room to keep ${images.toLocaleString("en")} of ${plural(total, "image")} in this browser: a reload loses `
    + "them. Your corrections are kept.";
}

/** Shows what cannot be stored, and images that were sorted with another model of the same name. */
export class KeepingNote {
  /**
   * @param {SortSet} set - The images.
   * @param {function()} adopted - Called after images of another model were added.
   */
  constructor(set, adopted) {
    Object.assign(this, { set, adopted });
    this.problems = make("div.problems");
    this.kept = make("p.hint", {}, "The images are kept in this browser only, until you teach or remove them.");
    this.loss = make("div", { role: "status" });
    this.foreign = make("div");
    this.element = make("div.stack.keeping", {}, this.foreign, this.problems, this.loss);
    set.addEventListener("change", () => this.update());
    this.update();
  }

  update() {
    const { items, foreign, model } = this.set;
    const text = lossOf(this.set.unkept(), items.length);
    this.kept.hidden = Boolean(text) || !items.length;
    if (this.loss.dataset.text !== text) {
      this.loss.dataset.text = text;
      fill(this.loss, text && make("div.notice", {}, icon("warning"), make("p", {}, text)));
    }
    this.element.hidden = !text && !foreign.length && !this.problems.childElementCount;
    const n = String(foreign.length);
    if (this.foreign.dataset.n === n) return;
    this.foreign.dataset.n = n;
    fill(this.foreign, foreign.length > 0 && make("div.notice.mild", { role: "status" }, icon("warning"),
      make("p", {}, `${plural(foreign.length, "image")} in this browser `
        + `${foreign.length === 1 ? "belongs" : "belong"} to another model that is also named “${model.name}”.`),
      action(() => this.adopt(), "Sort them with this model"),
      action(() => this.askToRemoveForeign(), "Remove them")));
  }

  adopt() {
    return attempt(this.problems, async () => {
      await this.set.adoptForeign();
      this.adopted();
    });
  }

  askToRemoveForeign() {
    const { foreign } = this.set;
    askToRemove(foreign.length, foreign.filter(({ moved }) => moved).length, () => this.set.discardForeign());
  }
}

/**
 * Ask for confirmation and remove images from this browser.
 * @param {number} images - Number of images.
 * @param {number} corrections - Number of them that were corrected and not taught.
 * @param {function(): Promise} work - Removes them.
 */
export function askToRemove(images, corrections, work) {
  const lost = corrections ? `${plural(corrections, "correction")} not taught yet will be lost. ` : "";
  askFor({
    title: `Remove ${plural(images, "image")} from this page?`,
    text: `${lost}This browser stops keeping the images. Your files and the model stay as they are.`,
    verb: "Remove",
    danger: true,
    work: async () => {
      await work();
      confirmDone(`Removed ${plural(images, "image")} from this page.`);
    },
  });
}
