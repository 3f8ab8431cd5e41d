// Training: its curves, live while it runs, and the same sentence at every checkpoint: heads can be watched as they form.

import { Curves, metricsTable, pointAt } from "heedful/parts/curves.js";
import { h } from "heedful/parts/dom.js";
import { Film } from "heedful/parts/film.js";

/** @typedef {import("heedful/main.js").Page} Page */
/** @typedef {import("heedful/data/trace.js").Trace} Trace */
/** @typedef {import("heedful/state/selection.js").Selection} Selection */
/** What the server knows of a training. @typedef {{metrics: any[], running: boolean, checkpoints: number[]}} Told */

/** Milliseconds between two looks at a training that runs. */
const EVERY = 2000;

/** @type {import("heedful/main.js").View} */
export const trainingView = {
  id: "training",
  title: "Training",
  needsServer: true,
  mount: (host, page) => new TrainingView(host, page),
};

class TrainingView {
  /** @param {HTMLElement} host @param {Page} page */
  constructor(host, page) {
    this.page = page;
    this.timer = 0;
    this.shown = false;
    /** @type {Told} */
    this.told = { metrics: [], running: false, checkpoints: [] };
    this.model = "";
    /** Who reads the end of the curves goes on with it. */
    this.following = true;
    this.status = h("p", { class: "lead", role: "status" });
    this.place = h("input", { type: "range", min: 0, step: 1, oninput: () => this.#read(Number(this.place.value)) });
    this.reading = h("output");
    this.reader = h("label", { class: "slider no-picture" }, h("span", null, "Read the curves at update"), this.place, this.reading);
    this.figure = h("div");
    this.table = h("div");
    this.film_host = h("div");
    host.append(this.status, this.reader, this.figure, this.table, this.film_host);
    this.curves = new Curves(this.figure, (update) => this.#read(update));
    this.film = new Film(this.film_host, page);
    document.addEventListener("visibilitychange", () => this.#plan());
  }

  /** @param {Selection} selection @param {Trace | null} trace */
  async show(selection, trace) {
    this.shown = true;
    if (!this.page.source.live) {
      this.#without("The curves of a training and its checkpoints need a running server: heedful serve MODEL.");
      return;
    }
    if (this.model !== selection.model) {
      this.model = selection.model;
      await this.#look();
    }
    await this.film.show(selection, trace, this.told.checkpoints, (update) => lossAt(this.told.metrics, update));
  }

  hide() {
    this.shown = false;
    clearTimeout(this.timer);
    this.model = ""; // looks again when it is shown again
    this.film.hide();
  }

  /** Ask for the numbers as they are now. */
  async #look() {
    const { model } = this;
    const told = await /** @type {any} */ (this.page.source).training(model);
    if (model !== this.model) return;
    this.told = told;
    this.#draw();
    this.#plan();
  }

  /** Look again soon if the training goes on and somebody watches. */
  #plan() {
    clearTimeout(this.timer);
    if (!this.shown || !this.told.running || document.hidden) return;
    this.timer = setTimeout(() => this.#look().catch((error) => this.page.say(error, () => this.#look())), EVERY);
  }

  /** @param {string} reason */
  #without(reason) {
    this.status.textContent = reason;
    for (const part of [this.reader, this.figure, this.table, this.film_host]) part.hidden = true;
  }

  #draw() {
    const { metrics, running, checkpoints } = this.told;
    for (const part of [this.reader, this.figure, this.table]) part.hidden = !metrics.length;
    if (!metrics.length) {
      this.status.textContent = "This model folder has no numbers of its training (training/metrics.jsonl).";
      return;
    }
    const last = metrics[metrics.length - 1];
    this.status.textContent = `${running ? "In training now: " : "Trained: "}${last.update.toLocaleString("en")} updates, ${last.epoch?.toFixed(1)} epochs, ${duration(last.seconds)}.`;
    this.place.max = last.update;
    const at = this.following ? last.update : Number(this.place.value);
    this.curves.draw(charts(metrics), last.update, checkpoints.filter((each) => each <= last.update), at);
    this.#read(at);
    const open = this.table.querySelector("details")?.open;
    if (!open) this.table.replaceChildren(metricsTable(metrics)); // an open one stays as it is, to be read
  }

  /** @param {number} update */
  #read(update) {
    this.following = update === Number(this.place.max);
    this.place.value = String(update);
    this.reading.textContent = update.toLocaleString("en");
    this.curves.read(update);
  }
}

/** @param {any[]} metrics @returns {import("heedful/parts/curves.js").Chart[]} */
function charts(metrics) {
  const series = (/** @type {string} */ id, /** @type {string} */ name, /** @type {"first" | "second"} */ style) => ({
    name, style, points: /** @type {[number, number][]} */ (metrics.filter((each) => id in each).map((each) => [each.update, each[id]])) });
  const short = (/** @type {number} */ value) => (value && value < 1e-4 ? value.toExponential(2) : String(Number(value.toPrecision(4))));
  return [
    { title: "Loss", unit: "(nats a token; less is better)", series: [series("loss", "training", "first"), series("validation_loss", "validation", "second")], format: short },
    { ...judged(metrics.reduce((all, each) => ({ ...all, ...each }), {}), series), format: short },
    { title: "Learning rate", unit: "(how large each step is)", series: [series("rate", "rate", "first")], format: short },
    { title: "Speed", unit: "(target tokens a second)", series: [series("tokens_per_second", "tokens/s", "first")], format: (value) => Math.round(value).toLocaleString("en") },
  ];
}

/**
 * How well it does on texts that it was not trained on, by what its task is judged by.
 * @param {Record<string, number>} known every number that there is @param {(id: string, name: string, style: "first" | "second") => import("heedful/parts/curves.js").Chart["series"][number]} series
 */
function judged(known, series) {
  if ("accuracy" in known) return { title: "Blanks filled rightly", unit: "(validation; percent)", series: [series("accuracy", "found", "first")] };
  if ("perplexity" in known && !("BLEU" in known)) return { title: "Perplexity", unit: "(validation; as if it guessed among so many pieces)", series: [series("perplexity", "perplexity", "first")] };
  return { title: "Scores", unit: "(validation; 100 is a perfect match)", series: [series("BLEU", "BLEU", "first"), series("chrF", "chrF", "second")] };
}

/** The training loss around an update, in words. @param {any[]} metrics @param {number} update */
function lossAt(metrics, update) {
  const losses = metrics.filter((each) => "loss" in each);
  if (update === 0 || !losses.length) return "";
  const { loss } = losses.find((each) => each.update >= update) ?? losses[losses.length - 1];
  const validations = metrics.filter((each) => "validation_loss" in each && each.update <= update).map((each) => /** @type {[number, number]} */ ([each.update, each.validation_loss]));
  const validation = validations.length ? pointAt(validations, update) : null;
  return `training loss ${loss.toFixed(3)}${validation ? `, validation loss ${validation[1].toFixed(3)}` : ""}`;
}

/** @param {number} seconds */
function duration(seconds) {
  if (seconds < 60) return `${Math.round(seconds)} seconds`;
  const minutes = Math.round(seconds / 60);
  return minutes < 60 ? `${minutes} ${minutes === 1 ? "minute" : "minutes"}` : `${(seconds / 3600).toFixed(1)} hours`;
}
