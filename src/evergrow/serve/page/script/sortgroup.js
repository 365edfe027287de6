/* A group of sorted images: a heading that is a drop target, and thumbnails that can be selected and moved. */

import { fill, make } from "./dom.js";
import { openWindow } from "./dialogs.js";
import { isExplainable, whyButtons } from "./evidence.js";
import { lazyImage, watchAgain } from "./lazy.js";
import { contentOf } from "./reading.js";
import { answerOf, classOfGroup } from "./sorting.js";

const SHOWN = 60; // images before "show more"

export class SortGroup {
  constructor(view, group, title) {
    Object.assign(this, { view, group, title, items: [], tiles: new Map(), limit: SHOWN, open: null });
    this.count = make("span.soft");
    this.isNew = make("span.badge-text", { hidden: true }, "New class");
    this.head = make("button.group-head", {
      type: "button", aria: { expanded: true }, on: { click: () => this.setOpen(!this.open) },
    }, make("span", {}, title), this.count, this.isNew);
    this.list = make("ul.tiles", { role: "listbox", aria: { label: title, multiselectable: true } });
    this.more = make("button.link", { type: "button", hidden: true, on: { click: () => this.showMore() } });
    this.element = make("section.group", { data: { group } }, make("h2.small", {}, this.head), this.list, this.more);
    this.listen();
  }

  /** Show these items. */
  show(items, limits) {
    Object.assign(this, { items, limits });
    this.element.hidden = !items.length && !this.group.startsWith("class:");
    this.element.classList.toggle("none", !items.length);
    this.count.textContent = items.length.toLocaleString("en");
    const name = classOfGroup(this.group);
    this.isNew.hidden = name === null || this.view.model.classes.some((one) => one.name === name);
    if (this.open === null) return;
    this.draw();
  }

  openAtFirst(open) { if (this.open === null) this.setOpen(open); }

  setOpen(open) {
    this.open = open;
    this.head.setAttribute("aria-expanded", String(open));
    this.draw();
  }

  showMore() {
    this.limit += 4 * SHOWN;
    this.draw();
  }

  draw() {
    const shown = this.open ? this.items.slice(0, this.limit) : [];
    this.list.hidden = !shown.length;
    this.more.hidden = !this.open || this.items.length <= this.limit;
    this.more.textContent = `Show more of ${this.title} (${this.items.length - shown.length})`;
    const key = shown.map((item) => `${item.id} ${answerOf(item, this.limits)}`).join("\n");
    if (this.list.dataset.key === key) return;
    this.list.dataset.key = key;
    const gone = new Map(this.tiles);
    const tiles = shown.map((item) => {
      gone.delete(item);
      return this.tileOf(item);
    });
    for (const item of gone.keys()) this.tiles.delete(item);
    fill(this.list, tiles);
    for (const tile of tiles) watchAgain(tile.querySelector("img"));
    this.giveTabStop();
  }

  /** Return the thumbnail of an item with its prediction. */
  tileOf(item) {
    const answer = answerOf(item, this.limits);
    if (!this.tiles.has(item)) {
      const tile = make("li.tile-image", {
        role: "option", draggable: true, tabIndex: -1, title: item.image.name, aria: { selected: false },
        on: {
          click: (event) => this.click(event, item), dblclick: () => openLarge(this.view.model, item),
          dragstart: (event) => this.drag(event, item),
        },
      }, lazyImage(item.image, ""), make("span"));
      this.tiles.set(item, tile);
    }
    const tile = this.tiles.get(item);
    tile.lastChild.textContent = answer;
    tile.classList.toggle("corrected", Boolean(item.moved));
    tile.setAttribute("aria-label", `${item.image.name.split("/").pop()}${answer && `, ${answer}`}`);
    tile.setAttribute("aria-selected", String(this.view.selected.has(item)));
    return tile;
  }

  showSelection() {
    for (const [item, tile] of this.tiles) tile.setAttribute("aria-selected", String(this.view.selected.has(item)));
  }

  // -- by pointer --------------------------------------------------------------------------------------------------

  click(event, item) {
    if (event.shiftKey && this.from !== undefined) {
      const [a, b] = [this.from, this.items.indexOf(item)].sort((x, y) => x - y);
      this.view.select([...new Set([...this.view.selected, ...this.items.slice(a, b + 1)])]);
    } else this.view.toggle(item);
    this.from = this.items.indexOf(item);
  }

  /** Begin to drag an item, with the other selected ones. */
  drag(event, item) {
    this.view.dragged = this.view.meant(item);
    event.dataTransfer.effectAllowed = "move";
    event.dataTransfer.setData("text/plain", item.image.name);
  }

  listen() {
    const { element, view } = this;
    element.addEventListener("dragover", (event) => {
      if (!view.dragged) return;
      event.preventDefault();
      element.classList.add("over");
    });
    element.addEventListener("dragleave", () => element.classList.remove("over"));
    element.addEventListener("drop", () => {
      element.classList.remove("over");
      if (view.dragged) view.move(view.dragged, this.group);
      view.dragged = null;
    });
    element.addEventListener("dragend", () => { view.dragged = null; });
    this.list.addEventListener("keydown", (event) => this.key(event));
    this.list.addEventListener("focusin", (event) => this.giveTabStop(event.target.closest("li")));
  }

  // -- by key ------------------------------------------------------------------------------------------------------

  key(event) {
    const at = this.indexOfFocus();
    const tiles = [...this.list.children];
    const columns = tiles.filter((tile) => tile.offsetTop === tiles[0].offsetTop).length;
    const to = {
      ArrowRight: at + 1, ArrowLeft: at - 1, ArrowDown: at + columns, ArrowUp: at - columns, Home: 0,
      End: tiles.length - 1,
    }[event.key];
    if (to !== undefined) {
      event.preventDefault();
      tiles[Math.max(0, Math.min(tiles.length - 1, to))].focus();
    } else if (event.key === " ") {
      event.preventDefault();
      this.view.toggle(this.items[at]);
    } else if (event.key === "Enter") {
      event.preventDefault(); // otherwise the same key press would close the window
      openLarge(this.view.model, this.items[at]);
    }
  }

  indexOfFocus() { return [...this.list.children].indexOf(document.activeElement); }

  /** Focus the image at an index, so that keyboard users continue there. */
  focusAt(index) {
    const tiles = this.list.children;
    (tiles[Math.min(index, tiles.length - 1)] ?? this.head).focus();
  }

  /** Let Tab reach one image of the group, and arrow keys the others. */
  giveTabStop(tile = this.list.children[0]) {
    for (const other of this.list.children) other.tabIndex = other === tile ? 0 : -1;
  }
}

/** Show an image in a window, with buttons that show where its prediction comes from. */
function openLarge(model, item) {
  const name = item.image.name.split("/").pop();
  const place = make("div.large-image", {}, lazyImage(item.image, name, 1024));
  const isAnswered = item.label && model.classes.some((one) => one.name === item.label);
  const why = isAnswered && isExplainable(model)
    && whyButtons(model, place, () => contentOf(item.image), [item.label]);
  openWindow(name, [place, why], { wide: true });
}
