/* Many images, read and made small one after the other and handed on a few at a time. */

import { fromFile } from "./imaging.js";

const AT_ONCE = 32;

/**
 * Read images; those that cannot be read are named in an error once all others are done.
 * @param {Array} images - As intake.js lists them.
 * @param {function(Array): Promise} take - Called with up to 32 at a time, as {content, folder}.
 * @param {function(number, number)} onProgress - Called with how many of how many are read.
 */
export async function readImages(images, take, onProgress = () => {}) {
  const bad = [];
  let ready = [];
  let done = 0;
  for (const image of images) {
    try {
      const file = await image.read();
      ready.push({ content: await fromFile(new File([file], image.name)), folder: image.folder });
    } catch (error) {
      bad.push(error.message);
    }
    done += 1;
    onProgress(done, images.length);
    if (ready.length === AT_ONCE) {
      await take(ready);
      ready = [];
    }
  }
  if (ready.length) await take(ready);
  if (bad.length) {
    const more = bad.length > 1 ? ` (and ${bad.length - 1} more)` : "";
    const rest = bad.length < images.length ? " All others were taken." : "";
    throw new Error(`${bad[0]}${more}.${rest}`);
  }
}
