/* Group sorted images that look unknown, and test sorted images for drift. */

import { ask } from "./api.js";
import { fill, plural } from "./dom.js";
import { lazyImage } from "./lazy.js";
import { attempt } from "./notice.js";
import { contentOf } from "./reading.js";
import { bodyOf } from "./samples.js";
import { groupOf } from "./sorting.js";
import { MOST, openGroups } from "./unlabelled.js";

const COMPARED = 100; // known images that are sent too, so that their similarity sets the size of groups

/** Maximum number of unknown images that are grouped at once. */
export const MOST_GROUPED = MOST - COMPARED;

/** Show groups of similar unknown images. A group that gets a name is moved to that class and taught. */
export function groupUnknown(view) {
  return attempt(view.problems, async () => {
    view.group.disabled = true;
    try {
      const unknown = view.unknown().slice(0, MOST_GROUPED);
      const items = [...unknown, ...view.known().slice(0, COMPARED)];
      const things = [];
      for (const [i, { image }] of items.entries()) {
        const look = () => lazyImage(image, "Unknown");
        things.push({ content: await contentOf(image), isUnknown: i < unknown.length, look });
      }
      await openGroups(view.model, things, async (places, name) => {
        const chosen = places.map((i) => items[i]);
        view.move(chosen, groupOf(name));
        if (!(await view.teachItems(chosen))) throw new Error("Nothing was taught.");
      });
    } finally {
      view.group.disabled = false;
    }
  });
}

/** Report which classes of the sorted images look different from the taught ones. */
export function compareWithTaught(view) {
  return attempt(view.problems, async () => {
    view.compare.disabled = true;
    fill(view.drift, "Comparing…");
    try {
      const sent = [];
      for (const { image } of view.items.filter((item) => item.done && !item.error).slice(0, MOST)) {
        sent.push(await contentOf(image));
      }
      fill(view.drift, driftIn(await ask(`${view.model.path}/drift`, bodyOf(view.model.kind, sent))));
    } catch (error) {
      fill(view.drift);
      throw error;
    } finally {
      view.compare.disabled = false;
    }
  });
}

/** Return a sentence about whether images look like the taught ones. */
function driftIn({ classes }) {
  const changed = classes.filter((one) => one.changed).map((one) => one.name);
  const tested = plural(classes.length, "class", "classes");
  if (!changed.length) return `Still as taught: the images of ${tested} look like the taught ones.`;
  return `Changed: ${changed.slice(0, 5).join(", ")}${changed.length > 5 ? " and others" : ""} look different from `
    + `the taught ones (${changed.length} of ${tested}). Check them, and teach some. `
    + "About one class in twenty is a false alarm.";
}
