/* Many images, read and made small one after the other. */

import { fromFile } from "./imaging.js";

/** Return what is sent of an image that was brought, at most so many pixels wide and high. */
export async function contentOf(image, most) {
  return fromFile(new File([await image.read()], image.name), most);
}

/** Return what is kept of an image that is taught: copies of it are known by the mark. */
export async function keptContentOf(image) {
  return { ...(await contentOf(image)), mark: await image.mark() };
}

/**
 * Read images; those that cannot be read are left out.
 * @param {Array} images - As intake.js lists them.
 * @param {function(number, number)} onProgress - Called with how many of how many are read.
 * @returns {Promise<{read: Array, bad: string[]}>} Each as {image, content}, and why others could not be read.
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

/** Raise an error that names what could not be read, once all others are done. */
export function complain(bad, total) {
  if (!bad.length) return;
  const more = bad.length > 1 ? ` (and ${bad.length - 1} more)` : "";
  const rest = bad.length < total ? " All others were taken." : "";
  throw new Error(`${bad[0]}${more}.${rest}`);
}
