/* The review queue: samples without a label, the least certain first. One key labels each. */

import { action, announce, fill, icon, iconButton, make, plural } from "./dom.js";
import { meantName } from "./dialogs.js";
import { clearDraft, keepDraft } from "./drafts.js";
import { toReview } from "./importing.js";
import { isExplainable, whyButtons } from "./evidence.js";
import { chooser, fromTransfer, IMAGES_AND_ZIPS, imagesIn } from "./inputs.js";
import { attempt, showProblem } from "./notice.js";
import { syncKept, whereKept } from "./imagestore.js";
import { caution, countOf, folded, isUnknown, nearestOf, rivalOf, typedSamples } from "./samples.js";
import { looks, thumb } from "./thumbs.js";
import {
  forgetUnlabelled, groupWords, hasGuesses, learnUnlabelled, MOST, openGroups, suggested,
} from "./unlabelled.js";

const ASKED = 64; // samples per request that predicts
const SOME = 10; // labels after which a new order is suggested
const SETTLED = 500; // milliseconds after the last change until the queue is predicted again

export class QueueView {
  constructor(model) {
    Object.assign(this, { model, shown: false, answers: new Map(), skipped: new Set(), revision: null });
    Object.assign(this, { order: new Map(), labelled: 0 }); // order: rank of each sample in the suggested order
    this.problems = make("div.problems");
    this.desk = make("div.desk");
    this.where = make("p.hint");
    this.element = make("div.queue", {}, this.problems, this.desk, this.where, this.inputs());
    model.addEventListener("change", () => this.follow());
    document.addEventListener("keydown", (event) => this.key(event), { signal: model.signal });
    this.follow();
  }

  open() {
    this.follow();
    void syncKept(this.model);
  }

  /** Return the field or the buttons that add samples to the queue. */
  inputs() {
    if (this.model.kind !== "images") {
      const box = make("textarea", {
        rows: 3, placeholder: "One per line, without a label", aria: { label: "Without a label, one per line" },
      });
      keepDraft(box, this.model, "queue");
      return make("form.typing", { on: { submit: (event) => {
        event.preventDefault();
        void attempt(this.problems, async () => {
          await this.model.enqueue(typedSamples(this.model.kind, box.value));
          clearDraft(box, this.model, "queue");
        });
      } } }, box, make("button", { type: "submit" }, "Add to the queue"));
    }
    const take = (coming) => void this.take(coming);
    const input = chooser({ multiple: true, accept: IMAGES_AND_ZIPS, id: "queue-files" }, take);
    const folder = chooser({ webkitdirectory: true, id: "queue-folder" }, take);
    const words = "Drop unlabelled images anywhere on this page, paste or choose them. The least certain come first.";
    document.addEventListener("paste", (event) => {
      const typing = document.activeElement?.matches?.("input, textarea");
      if (this.shown && !typing && event.clipboardData.files.length) take(fromTransfer(event.clipboardData));
    }, { signal: this.model.signal });
    return make("div.dropzone", {}, make("p", {}, icon("folder"), make("span", {}, words)),
      iconButton("image", "Choose images or a zip", () => input.click()), input,
      iconButton("folder", "Choose a folder", () => folder.click()), folder);
  }

  /** Add dropped or chosen images to the queue. */
  take(coming) {
    return attempt(this.problems, async () => {
      await toReview(this.model, imagesIn(await coming));
    });
  }

  /** Show the queue, and predict again after the model has changed. */
  follow() {
    this.draw();
    const { record, queue, isReady } = this.model;
    const missing = queue.some((sample) => !this.answers.has(sample.id));
    if (!isReady || !queue.length || !this.shown || (!missing && this.revision === record.revision)) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => void this.askAbout(), SETTLED);
  }

  /** Predict the whole queue, and order it again if there are new samples or enough new labels. */
  async askAbout() {
    const { queue, record } = this.model;
    this.revision = record.revision;
    try {
      for (let at = 0; at < queue.length; at += ASKED) {
        const part = queue.slice(at, at + ASKED);
        const { answers, measure } = await this.model.predict(part);
        part.forEach((sample, i) => this.answers.set(sample.id, { ...answers[i], measure }));
      }
      if (queue.some(({ id }) => !this.order.has(id)) || this.labelled >= SOME) await this.arrange(queue);
      this.draw();
    } catch (problem) {
      this.revision = null;
      if (!problem.kind) throw problem;
      if (this.shown) showProblem(this.problems, problem, () => this.askAbout());
    }
  }

  /** Let the service suggest an order of the queue. Near-duplicates come last. */
  async arrange(queue) {
    const isDoubtful = queue.length > 1 && this.known > 1;
    const ids = isDoubtful ? await suggested(this.model, queue) : [];
    const rest = queue.map(({ id }) => id).filter((id) => !ids.includes(id));
    this.order = new Map([...ids, ...rest].map((id, i) => [id, i]));
    this.labelled = 0;
  }

  /** Return the queue, the most useful samples first. New samples are ordered by uncertainty. */
  ordered() {
    const sureness = (sample) => {
      const answer = this.answers.get(sample.id);
      if (!answer) return 1;
      const [first, second] = answer.top;
      return (isUnknown(answer) ? -1 : 0) + first.value - (second?.value ?? 0);
    };
    const rankOf = ({ id }) => this.order.get(id) ?? this.order.size;
    const isLater = ({ id }) => (id === this.pinned && !this.skipped.has(id) ? -1 : Number(this.skipped.has(id)));
    return [...this.model.queue].sort((one, other) => isLater(one) - isLater(other)
      || rankOf(one) - rankOf(other) || sureness(one) - sureness(other) || one.id - other.id);
  }

  /** Show the first sample with its buttons, and thumbnails of the next ones. */
  draw() {
    const order = this.ordered();
    [this.current] = order;
    if (this.answers.has(this.current?.id)) this.pinned = this.current.id; // first until labelled or skipped
    const { classes, queue, kind } = this.model;
    this.where.textContent = whereKept(this.model, queue.length, "review");
    const key = `${order.map((one) => one.id).join()} ${classes.map((one) => one.name).join("\n")} ${this.verdict()} `
      + this.model.record.revision;
    if (this.desk.dataset.key === key) return;
    const written = this.desk.querySelector("#queue-new")?.value;
    if (written && this.drawn === this.current?.id) { // do not replace a field while the user types
      this.desk.querySelector("figcaption").textContent = this.verdict();
      return;
    }
    this.drawn = this.current?.id;
    const within = this.desk.contains(document.activeElement) // where the focus returns to
      && (document.activeElement.id === "queue-new" ? "#queue-new" : ".labels button");
    this.desk.dataset.key = key;
    if (!this.current) {
      fill(this.desk, make("p.soft.empty", {}, "Nothing to label."));
      return;
    }
    fill(this.desk, make("p.soft", {}, `${countOf(kind, order.length)} to label`), make("div.judge", {},
      this.figure(),
      make("div.answers", {}, this.typing(), this.buttons = this.labelButtons(),
        make("div.actions", {}, action(() => this.skip(), make("kbd", {}, "S"), "Skip"),
          action(() => this.discard(), make("kbd", {}, "X"), "Discard")))),
    order.length > 1 && make("ul.thumbs", { aria: { label: "Next" } },
      order.slice(1, 13).map((sample) => thumb(sample, "in the queue"))), this.allAtOnce(order));
    if (within) this.desk.querySelector(within)?.focus();
  }

  /** Return the current sample with its prediction, and buttons that show where it comes from. */
  figure() {
    const place = make("div", {}, looks(this.current, "To be labelled"));
    const answer = this.answers.get(this.current.id);
    const content = this.current;
    const names = (answer?.top ?? []).map((one) => one.class);
    return make("figure", {}, place, make("figcaption", {}, this.verdict()),
      names.length > 1 && isExplainable(this.model) && whyButtons(this.model, place, async () => content, names));
  }

  /** Number of classes with samples. */
  get known() { return this.model.classes.filter((one) => one.count).length; }

  /** Return buttons for many samples: group unknown ones, learn without labels, forget what was so learned. */
  allAtOnce(queue) {
    const answerOf = (sample) => this.answers.get(sample.id);
    const isOdd = (sample) => Boolean(answerOf(sample)) && isUnknown(answerOf(sample));
    const unknown = queue.filter(isOdd);
    const all = [...unknown, ...queue.filter((sample) => !isOdd(sample))];
    const group = unknown.length > 1 && iconButton("search", groupWords(unknown.length, MOST),
      () => void attempt(this.problems, () => openGroups(this.model,
        all.map((sample) => ({
          content: sample, isUnknown: isOdd(sample), look: () => looks(sample, "Unknown"),
        })),
        (indices, name) => this.model.teachAgain(indices.map((i) => all[i]), name, { hold: true, atOnce: 1024 }))));
    const some = queue.slice(0, MOST);
    const learn = this.known > 1 && some.length > 1 && iconButton("check", `Learn from ${some.length} without labels`,
      () => void attempt(this.problems, () => learnUnlabelled(this.model, some)));
    const forget = hasGuesses(this.model.record.history) && iconButton("undo", "Forget what was learned without labels",
      () => void attempt(this.problems, () => forgetUnlabelled(this.model)));
    return (group || learn || forget) && make("div.stack", {}, make("div.row", {}, group, learn, forget),
      learn && make("p.hint", {}, "Each is learned as the class it looks like. That helps while classes have few "
        + "examples. They stay in the queue, and a label replaces the guess."));
  }

  /** Return a button for each class, in a fixed order. The predicted class is marked. */
  labelButtons() {
    const guess = this.answers.get(this.current.id);
    return make("div.labels", { role: "group", aria: { label: "What is it?" } }, this.model.classes.map((one, i) => {
      const says = guess && !isUnknown(guess) && guess.label === one.name;
      const button = action(() => this.label(one.name), i < 9 && make("kbd", {}, i + 1), make("span", {}, one.name),
        says && make("span.unseen", {}, ", as the model says"));
      button.dataset.name = one.name;
      button.classList.toggle("guess", Boolean(says));
      return button;
    }));
  }

  /** Return a field that filters the class buttons. Enter presses the first match. */
  typing() {
    const input = make("input", {
      required: true, maxLength: 200, autocomplete: "off", id: "queue-new", placeholder: "Type a class, new or known",
      aria: { label: "Type a class, new or known" }, on: { input: () => this.narrow(input.value.trim()) },
    });
    return make("form.row", { on: { submit: (event) => {
      event.preventDefault();
      this.buttons.querySelector("button:not([hidden])").click();
    } } }, input, make("button", { type: "submit" }, make("kbd", {}, "N"), "Label"));
  }

  /** Show only the buttons of classes that match a typed name, and one for a new class. */
  narrow(typed) {
    const wanted = folded(typed);
    this.buttons.querySelector(".new")?.remove();
    const known = [...this.buttons.children];
    for (const button of known) button.hidden = !folded(button.dataset.name).includes(wanted);
    const exact = known.find((button) => folded(button.dataset.name) === wanted);
    if (exact) this.buttons.prepend(exact);
    else if (typed) {
      const create = action(() => void this.labelNew(typed), icon("plus"), make("span", {}, `New class: ${typed}`));
      create.classList.add("new");
      this.buttons.append(create);
    }
  }

  async labelNew(typed) { this.label(await meantName(this.model.classes, typed)); }

  /** Return the prediction of the current sample as a sentence. */
  verdict() {
    const answer = this.answers.get(this.current?.id);
    if (!answer) return this.model.isReady ? "Asking…" : "The model does not answer yet.";
    const [first] = answer.top;
    if (isUnknown(answer)) return `Unknown. Looks most like ${nearestOf(answer)}.`;
    const rival = rivalOf(answer, answer.measure);
    if (rival) return `Either ${first.class} or ${rival}.`;
    if (answer.unsure) return `Unsure. Perhaps ${first.class}.`;
    if (answer.measure !== "probability") return `The model says ${first.class}.`;
    const rough = caution(this.model.kind, this.model.classes) ? ", roughly: it has few examples" : "";
    return `The model says ${first.class}, ${Math.round(100 * first.value)} % sure${rough}.`;
  }

  /** Teach the current sample under a label. */
  label(name) {
    if (!name || !this.current) return;
    const sample = this.current;
    this.labelled += 1;
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
    const name = this.model.classes[Number(event.key) - 1]?.name;
    const work = name ? () => this.label(name) : {
      n: () => this.desk.querySelector("#queue-new").focus(), s: () => this.skip(), x: () => this.discard(),
    }[event.key.toLowerCase()];
    if (!work) return;
    event.preventDefault();
    work();
  }
}
