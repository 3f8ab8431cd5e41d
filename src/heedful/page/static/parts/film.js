// One sentence at every checkpoint of a training: a slider, the chosen head there, and all of them side by side.

import { Trace } from "heedful/data/trace.js";
import { palette } from "heedful/parts/colours.js";
import { h, isolated, shown } from "heedful/parts/dom.js";
import { hatchMasked, Matrix } from "heedful/parts/matrix.js";
import { refill } from "heedful/parts/refill.js";
import { headName, placeControls } from "heedful/views/head.js";

/** @typedef {import("heedful/main.js").Page} Page */
/** @typedef {import("heedful/state/selection.js").Selection} Selection */
/** One checkpoint (null is the finished model), and the finished model's translation as read there. @typedef {{update: number | null, trace: Trace}} Frame */

/** Milliseconds in which a slider that moves on is not obeyed yet. */
const PAUSE = 150;
/** Frames at most; of more checkpoints an even choice is taken. */
const MOST = 24;
/** Parameters of a model that is quick enough to be asked for all frames unbidden. */
const CHEAP = 5_000_000;
const SIDE = 96;

export class Film {
  /** @param {HTMLElement} host @param {Page} page */
  constructor(host, page) {
    this.page = page;
    /** @type {number[]} */
    this.checkpoints = [];
    /** What is known of the loss after so many updates. @type {(update: number) => string} */
    this.loss = () => "";
    /** @type {Frame[]} */
    this.frames = [];
    /** The sentence and model that the frames are of. */
    this.subject = "";
    /** Whether the frames of this subject were begun. */
    this.begun = false;
    /** @type {AbortController | null} */
    this.making = null;
    this.timer = 0;
    this.slider = h("input", { type: "range", min: 0, step: 1, oninput: () => this.#slid() });
    this.stage = h("output");
    this.written = h("p", { class: "film-text", dir: "auto" });
    this.place = h("div", { class: "controls" });
    this.figure = h("div", { class: "figure" });
    this.strip = h("div", { class: "film-strip" });
    this.tools = h("div", { class: "controls" });
    this.body = h("div", null, h("label", { class: "slider" }, h("span", null, "Checkpoint"), this.slider, this.stage), this.written,
      h("h3", null, "Watch a head form"), this.place, this.tools, h("div", { class: "two even" }, this.figure, this.strip));
    this.none = h("p", { class: "lead no-picture" });
    host.append(h("h3", null, "The same sentence while the model learned"), this.none, this.body);
    this.matrix = new Matrix(this.figure);
  }

  /** @param {Selection} selection @param {Trace | null} trace @param {number[]} checkpoints @param {(update: number) => string} loss */
  async show(selection, trace, checkpoints, loss) {
    Object.assign(this, { checkpoints, loss });
    this.body.hidden = !trace || !checkpoints.length;
    this.none.textContent = !checkpoints.length ? "No weights of earlier updates are kept. Train with --set training.snapshots=12 to keep some."
      : trace ? "Move the slider: the model is asked with the weights it had then, here and in all other views." : "Write a sentence above to see it at every checkpoint.";
    if (!trace || !checkpoints.length) return;
    this.#slide(selection.checkpoint);
    this.written.textContent = trace.manifest.translation.text || "(writes nothing yet)";
    const { kind, words } = selection;
    const [layer, head] = this.#head(selection, trace);
    const weights = await trace.weights(kind, layer, head, words);
    if (this.page.stale(selection, trace)) return;
    this.#place(selection, trace);
    this.#matrix(selection, trace, weights);
    await this.#film(selection);
  }

  hide() {
    this.making?.abort();
    clearTimeout(this.timer);
  }

  /** @param {Selection} selection @param {Trace} trace @returns {[number, number | null]} */
  #head({ kind, layer, head }, trace) {
    return [Math.min(layer, trace.layers(kind) - 1), head === null ? null : Math.min(head, trace.heads - 1)];
  }

  /** Updates in order; null, the finished model, comes last. @returns {(number | null)[]} */
  get stages() {
    return [...this.checkpoints, null];
  }

  /** @param {number | null} update */
  #slide(update) {
    const { stages } = this;
    const found = stages.indexOf(update);
    this.slider.max = stages.length - 1;
    this.slider.value = found < 0 ? stages.length - 1 : found;
    this.#tell();
  }

  #slid() {
    this.#tell();
    clearTimeout(this.timer);
    const checkpoint = this.stages[Number(this.slider.value)];
    this.timer = setTimeout(() => this.page.store.set({ checkpoint }, { replace: true }), PAUSE);
  }

  #tell() {
    const update = this.stages[Number(this.slider.value)];
    this.stage.textContent = [stageName(update), update === null ? "" : this.loss(update)].filter(Boolean).join(": ");
    this.slider.setAttribute("aria-valuetext", this.stage.textContent);
  }

  /** @param {Selection} selection @param {Trace} trace */
  #place(selection, trace) {
    refill(this.place, ...placeControls(this.page, selection, trace));
  }

  /** @param {Selection} selection @param {Trace} trace @param {import("heedful/data/trace.js").Weights} weights */
  #matrix(selection, trace, weights) {
    const { kind } = selection;
    const [layer, head] = this.#head(selection, trace);
    const masked = trace.masked(kind, selection.words, layer);
    const when = stageName(selection.checkpoint).toLowerCase();
    this.matrix.draw({
      title: `${headName(kind, layer, head)}, ${when}`, ...weights, masked,
      spoken: (row, column) => masked?.(row, column) ? `${isolated(weights.rows[row])} may not look at ${isolated(weights.columns[column])}: masked`
        : `${isolated(weights.rows[row])} looks at ${isolated(weights.columns[column])}: ${shown(weights.values[row * weights.columns.length + column])}, ${when}`,
    });
  }

  /** @param {Selection} selection */
  async #film(selection) {
    const subject = JSON.stringify(this.page.question({ checkpoint: null }));
    if (subject !== this.subject) {
      this.making?.abort();
      Object.assign(this, { subject, frames: [], making: null, begun: false });
      this.strip.replaceChildren();
    }
    this.#tools();
    await this.#strip(selection);
    if (!this.begun && this.page.model.parameters < CHEAP) this.#make();
  }

  #tools() {
    const busy = this.making !== null;
    refill(this.tools,
      busy ? h("button", { type: "button", data: { name: "film" }, onclick: () => this.making?.abort() }, "Stop")
        : h("button", { type: "button", class: "primary", data: { name: "film" }, onclick: () => this.#make() }, this.frames.length ? "Make it again" : "Show this head at every checkpoint"),
      h("span", { class: "legend" }, "All read what the finished model wrote, so that rows and columns stay the same. More colour is more weight; hatched is masked."));
  }

  /** One trace after another, until all are there or somebody stops it. */
  async #make() {
    const making = new AbortController();
    Object.assign(this, { making, frames: [], begun: true });
    this.#tools();
    try {
      const finished = await this.page.source.trace(this.page.question({ checkpoint: null }), making.signal);
      for (const update of this.#chosen()) {
        const asked = this.page.question({ checkpoint: update, prefix: [] }, { target_ids: finished.translation.ids });
        const manifest = await this.page.source.trace(asked, making.signal);
        if (making.signal.aborted) break;
        this.frames.push({ update, trace: new Trace(manifest, this.page.source) });
        await this.#strip(this.page.store.selection);
      }
    } catch (error) {
      if (!making.signal.aborted) this.page.say(error, () => this.#make());
    }
    if (this.making !== making) return;
    this.making = null;
    this.#tools();
  }

  /** Not too many of the stages, the last always. */
  #chosen() {
    const every = Math.ceil(this.stages.length / MOST);
    return this.stages.filter((_, i) => (this.stages.length - 1 - i) % every === 0);
  }

  /** @param {Selection} selection */
  async #strip(selection) {
    const { frames } = this;
    const drawn = await Promise.all(frames.map((frame) => this.#frame(frame, selection))).catch((error) => {
      if (error.status !== 404) throw error;
      if (frames === this.frames) Object.assign(this, { frames: [], begun: this.making !== null }); // the server has forgotten some: make them anew
      this.#tools();
      return [];
    });
    if (frames === this.frames && drawn.length === frames.length) refill(this.strip, ...drawn);
  }

  /** @param {Frame} frame @param {Selection} selection */
  async #frame({ update, trace }, selection) {
    const [layer, head] = this.#head(selection, trace);
    const { rows, columns, values } = await trace.weights(selection.kind, layer, head, selection.words);
    const canvas = h("canvas", { "aria-hidden": "true" });
    paint(canvas, values, rows.length, columns.length, trace.masked(selection.kind, selection.words, layer));
    const likely = trace.manifest.translation.log_probability;
    return h("button", {
      type: "button", class: "film-frame", data: { name: String(update) }, "aria-pressed": String(update === selection.checkpoint),
      onclick: () => this.page.store.set({ checkpoint: update }),
    }, canvas, h("span", null, update === null ? "finished" : update.toLocaleString("en")), h("small", null, `log P ${shown(likely, 2)}`));
  }
}

/** @param {number | null} update */
function stageName(update) {
  if (update === null) return "Finished model";
  return update === 0 ? "Before the first update: random weights" : `After ${update.toLocaleString("en")} ${update === 1 ? "update" : "updates"}`;
}

/** @param {HTMLCanvasElement} canvas @param {Float32Array} values @param {number} rows @param {number} columns @param {((row: number, column: number) => boolean) | undefined} masked */
function paint(canvas, values, rows, columns, masked) {
  const size = SIDE / Math.max(rows, columns);
  const ratio = window.devicePixelRatio || 1;
  Object.assign(canvas, { width: Math.round(columns * size * ratio), height: Math.round(rows * size * ratio) });
  Object.assign(canvas.style, { width: `${columns * size}px`, height: `${rows * size}px` });
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.scale(ratio, ratio);
  const colours = palette();
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      if (masked?.(row, column)) continue;
      context.fillStyle = colours.unit(values[row * columns + column]);
      context.fillRect(column * size, row * size, size + 0.5, size + 0.5);
    }
  }
  if (masked) hatchMasked(context, rows, columns, size, masked, colours);
}
