/* Read and scale images, one after the other. */

import { fromFile } from "./imaging.js";

/** Return an image that the user brought as a sample, at most so many pixels wide and high. */
export async function contentOf(image, most) {
  return fromFile(new File([await image.read()], image.name), most);
}

/** Return an image as a sample to teach, with its mark, by which copies are recognised. */
export async function keptContentOf(image) {
  return { ...(await contentOf(image)), mark: await image.mark() };
}

/**
 * Read images. Those that cannot be read are left out.
 * @param {Array} images - Images from inputs.js.
 * @param {function(number, number)} onProgress - Called with the number of images that were read, and of all.
 * @returns {Promise<{read: Array, bad: string[]}>} Images as { image, content }, and messages about unreadable ones.
 */
export async function readImages(images, onProgress = () => {}) {
  const read = [];
  const bad = [];
  for (const [i, image] of images.entries()) {
    try {
      read.push({ image, content: await keptContentOf(image) });
    } catch (error) {
      bad.push(error.message);
    }
    onProgress(i + 1, images.length);
  }
  return { read, bad };
}

/** Raise an error that lists unreadable images, if there are any. */
export function complain(bad, total) {
  if (!bad.length) return;
  const more = bad.length > 1 ? ` (and ${bad.length - 1} more)` : "";
  const rest = bad.length < total ? " All others were taken." : "";
  throw new Error(`${bad[0]}${more}.${rest}`);
}
