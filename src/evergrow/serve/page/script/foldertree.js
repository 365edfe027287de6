/* Folders of images as a tree, with the number of images in each. */

import { make, plural } from "./dom.js";

const MOST_ROWS = 8; // folders shown of each folder
const MOST_LEVELS = 6; // levels shown; deeper folders count for their parent

/** Return the folders of an image, the outermost first. */
export const foldersOf = (image) => image.name.split("/").slice(0, -1);

/** Return the number of outermost folders that all images share. */
export function countShared(paths) {
  const [first] = paths;
  let shared = 0;
  while (shared < first.length && paths.every((path) => path[shared] === first[shared])) shared += 1;
  return shared;
}

/**
 * Return a tree of the folders of images. Folders that may be classes have the CSS class "outer" or "inner".
 * @param {Array} images - Images from inputs.js.
 */
export function folderTree(images) {
  const paths = images.map(foldersOf);
  const root = newFolder();
  for (const path of paths) addImage(root, path);
  return make("div.tree", { tabIndex: 0, role: "region", aria: { label: "Folders" } },
    listOf(root, 0, countShared(paths)));
}

const newFolder = () => ({ count: 0, own: 0, children: new Map() });

/** Count an image in all of its folders; "own" counts images directly in a folder. */
function addImage(root, path) {
  let folder = root;
  for (const name of path.slice(0, MOST_LEVELS)) {
    if (!folder.children.has(name)) folder.children.set(name, newFolder());
    folder = folder.children.get(name);
    folder.count += 1;
  }
  folder.own += 1;
}

/** Return the folders inside a folder as a list. */
function listOf(folder, level, shared) {
  const children = [...folder.children];
  if (!children.length) return null;
  const rest = children.length - MOST_ROWS;
  return make("ul", {}, children.slice(0, MOST_ROWS).map((child) => rowOf(child, level, shared)),
    rest > 0 && make("li.soft", {}, `and ${plural(rest, "more folder")}`));
}

/** Return a folder as an entry, with the folders inside. */
function rowOf([name, folder], level, shared) {
  const title = make("span", {}, name);
  title.classList.toggle("outer", level === shared);
  title.classList.toggle("inner", level >= shared && folder.own > 0);
  return make("li", {}, title, make("span.soft", {}, ` ${plural(folder.count, "image")}`),
    listOf(folder, level + 1, shared));
}
