/* The queue: images or texts without a label, what the model is least sure about first, labelled by one key each. */

import { action, announce, fill, icon, iconButton, make, plural } from "./dom.js";
import { fromChosen, fromTransfer } from "./intake.js";
import { attempt, showProblem } from "./notice.js";
import { readImages } from "./reading.js";
import { typedSamples } from "./samples.js";
import { looks, thumb } from "./thumbs.js";

const ASKED = 64; // of the queue that are asked about at once
const SETTLED = 500; // milliseconds after the last change until they are asked about again

export class QueueView {
  constructor(model) {
    Object.assign(this, { model, shown: false, answers: new Map(), skipped: new Set(), revision: null });
    this.problems = make("div.problems");
    this.desk = make("div.desk");
    this.element = make("div.queue", {}, this.intake(), this.problems, this.desk);
    model.addEventListener("change", () => this.follow());
    document.addEventListener("keydown", (event) => this.key(event), { signal: model.signal });
    this.follow();
  }

  open() { this.follow(); }

  intake() {
    if (this.model.kind !== "images") {
      const box = make("textarea", {
        rows: 3, placeholder: "One per line, without a label", aria: { label: "Samples without a label, one per line" },
      });
      return make("form.typing", { on: { submit: (event) => {
        event.preventDefault();
        void attempt(this.problems, async () => {
          await this.model.enqueue(typedSamples(this.model.kind, box.value));
          box.value = "";
        });
      } } }, box, make("button", { type: "submit" }, "Add to the queue"));
    }
    const input = make("input", {
      type: "file", multiple: true, accept: "image/*,.zip", hidden: true, id: "queue-files",
    });
    input.addEventListener("change", () => {
      void this.take(fromChosen(input.files));
      input.value = "";
    });
    const words = "Drop images without labels here. The least certain come first.";
    const zone = make("div.dropzone", {}, make("p", {}, icon("folder"), make("span", {}, words)),
      iconButton("image", "Choose images", () => input.click()), input);
    zone.addEventListener("dragover", () => zone.classList.add("over"));
    zone.addEventListener("dragleave", () => zone.classList.remove("over"));
    zone.addEventListener("drop", (event) => {
      zone.classList.remove("over");
      void this.take(fromTransfer(event.dataTransfer));
    });
    return zone;
  }

  take(coming) {
    return attempt(this.problems, async () => {
      const { images } = await coming;
      if (!images.length) throw new Error("No image found.");
      await readImages(images, (ready) => this.model.enqueue(ready.map(({ content }) => content)));
    });
  }

  /** Show the queue, and ask again about it once the model has changed. */
  follow() {
    this.draw();
    const { record, queue, isReady } = this.model;
    const missing = queue.some((sample) => !this.answers.has(sample.id));
    if (!isReady || !queue.length || !this.shown || (!missing && this.revision === record.revision)) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => void this.askAbout(), SETTLED);
  }

  async askAbout() {
    const { queue, record } = this.model;
    this.revision = record.revision;
    try {
      for (let at = 0; at < queue.length; at += ASKED) {
        const part = queue.slice(at, at + ASKED);
        const { answers } = await this.model.predict(part);
        part.forEach((sample, i) => this.answers.set(sample.id, answers[i]));
      }
      this.draw();
    } catch (problem) {
      this.revision = null;
      if (!problem.kind) throw problem;
      if (this.shown) showProblem(this.problems, problem, () => this.askAbout());
    }
  }

  /** Return the queue in the order of what teaches the most. */
  ordered() {
    const sureness = (sample) => {
      const answer = this.answers.get(sample.id);
      if (!answer) return 1;
      const [first, second] = answer.top;
      return (answer.unknown ? -1 : 0) + first.value - (second?.value ?? 0);
    };
    return [...this.model.queue].sort((one, other) => this.skipped.has(one.id) - this.skipped.has(other.id)
      || sureness(one) - sureness(other) || one.id - other.id);
  }

  draw() {
    const order = this.ordered();
    [this.current] = order;
    const key = `${order.map((one) => one.id).join()} ${this.choices().join("\n")} ${this.verdict()}`;
    if (this.desk.dataset.key === key) return;
    const within = this.desk.contains(document.activeElement);
    this.desk.dataset.key = key;
    if (!this.current) {
      fill(this.desk, make("p.soft.empty", {}, "The queue is empty."));
      return;
    }
    const labels = this.choices();
    const buttons = labels.map((name, i) => action(() => this.label(name),
      make("kbd", {}, i + 1), make("span", {}, name)));
    const input = make("input", {
      required: true, maxLength: 200, autocomplete: "off", id: "queue-new", placeholder: "Another class",
    });
    const form = make("form.row", {}, make("label.unseen", { htmlFor: "queue-new" }, "Another class"), input,
      make("button", { type: "submit" }, make("kbd", {}, "N"), "Name it"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.label(input.value.trim());
    });
    fill(this.desk, make("p.soft", {}, `${plural(order.length, "sample")} to label`), make("div.judge", {},
      make("figure", {}, looks(this.current, "The sample to label"), make("figcaption", {}, this.verdict())),
      make("div.stack", {}, make("div.labels", { role: "group", aria: { label: "What is it?" } }, buttons), form,
        make("div.actions", {}, action(() => this.skip(), make("kbd", {}, "S"), "Skip"),
          action(() => this.discard(), make("kbd", {}, "X"), "Discard")))),
    order.length > 1 && make("ul.thumbs", { aria: { label: "Next" } },
      order.slice(1, 13).map((sample) => thumb(sample, "in the queue"))));
    if (within) this.desk.querySelector(".labels button, input")?.focus();
  }

  /** Return the classes to choose from, the likeliest first. */
  choices() {
    const likely = this.answers.get(this.current?.id)?.top.map((one) => one.class) ?? [];
    return [...new Set([...likely, ...this.model.classes.map((one) => one.name)])]
      .filter((name) => this.model.classes.some((one) => one.name === name)).slice(0, 9);
  }

  verdict() {
    const answer = this.answers.get(this.current?.id);
    if (!answer) return this.model.isReady ? "Asking…" : "The model does not answer yet.";
    if (answer.unknown) return "Unknown: unlike anything taught.";
    const [first, second] = answer.top;
    if (second && first.value - second.value < 0.5) return `Either ${first.class} or ${second.class}.`;
    return `It says ${first.class}, ${Math.round(100 * first.value)} % sure.`;
  }

  label(name) {
    if (!name || !this.current) return;
    const sample = this.current;
    announce(`Labelled ${name}`);
    void attempt(this.problems, () => this.model.teachAgain([sample], name, { hold: true }));
  }

  skip() {
    this.skipped.add(this.current.id);
    this.draw();
  }

  discard() {
    void attempt(this.problems, () => this.model.remove([this.current]));
  }

  key(event) {
    const typing = event.target.matches?.("input, textarea, select, [contenteditable]");
    if (!this.shown || !this.current || typing) return;
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const name = this.choices()[Number(event.key) - 1];
    const work = name ? () => this.label(name) : {
      n: () => this.desk.querySelector("#queue-new").focus(), s: () => this.skip(), x: () => this.discard(),
    }[event.key.toLowerCase()];
    if (!work) return;
    event.preventDefault();
    work();
  }
}
