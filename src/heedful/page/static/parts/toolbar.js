// Take it with you: numbers as CSV, figures as SVG and PNG, and the whole page as one file.

import { h } from "heedful/parts/dom.js";
import { matrixPicture } from "heedful/parts/matrix_picture.js";
import { pictureButtons, pngBlob, save, svgText } from "heedful/parts/picture.js";
import { snapshot } from "heedful/parts/snapshot.js";
import { toUrl } from "heedful/state/selection.js";

export { save };

/** @typedef {import("heedful/parts/matrix.js").MatrixFigure} MatrixFigure */
/** @typedef {import("heedful/main.js").Page} Page */

/** Of the sentence, in the name of a file. */
const WORDS = 4;
const LETTERS = 40;

/** Buttons for one matrix. @param {MatrixFigure} figure @param {string} name */
export function toolbar(figure, name) {
  return h("div", { class: "toolbar", role: "group", "aria-label": "Download this matrix" },
    h("span", { class: "toolbar-label" }, "Download"),
    h("button", { type: "button", "aria-label": "Download CSV", onclick: () => save(`${name}.csv`, "text/csv", csv(figure)) }, "CSV"),
    pictureButtons(() => matrixPicture(figure), name, "matrix"));
}

/** @param {MatrixFigure} figure */
export function csv({ rows, columns, values, masked }) {
  const line = (/** @type {string} */ name, /** @type {number} */ i) =>
    [quoted(name), ...columns.map((_, j) => (masked?.(i, j) ? "" : String(values[i * columns.length + j])))].join(",");
  return [["", ...columns.map(quoted)].join(","), ...rows.map(line)].join("\r\n") + "\r\n";
}

/** A word as a field; one that a spreadsheet would take for a formula becomes text. @param {string} text */
function quoted(text) {
  const harmless = /^[=+\-@\t\r]/.test(text) && text.length > 1 ? `'${text}` : text;
  return `"${harmless.replaceAll('"', '""')}"`;
}

/** What can be taken from the page as a whole. @param {Page} page */
export function takeAway(page) {
  const button = (/** @type {string} */ text, /** @type {string} */ spoken, /** @type {() => Promise<void>} */ take) => {
    const made = h("button", { type: "button", "aria-label": spoken, title: spoken, onclick: async () => {
      made.disabled = true;
      try {
        await take();
      } catch (error) {
        page.say(error, () => made.click());
      } finally {
        made.disabled = false;
      }
    } }, text);
    return made;
  };
  return h("div", { class: "taking toolbar", role: "group", "aria-label": "Take it with you" },
    page.source.live && button("Save this page", "Save this page as one file that works without a server", () => savePage(page)),
    button("View as SVG", "View as SVG: a sharp picture of the chosen view", async () => save(`${viewName(page)}.svg`, "image/svg+xml", svgText(picture(page)))),
    button("View as PNG", "View as PNG: a picture of the chosen view", async () => save(`${viewName(page)}.png`, "image/png", await pngBlob(picture(page)))));
}

/** A name for a file that begins as the sentence does, in letters that every system takes. @param {Page} page */
function fileName({ trace }) {
  const words = trace?.manifest.asked.source.normalize("NFC").toLowerCase().replace(/['’]/g, "").match(/[\p{L}\p{M}\p{N}]+/gu) ?? [];
  return ["heedful", ...Array.from(words.slice(0, WORDS).join("-")).slice(0, LETTERS).join("").split("-")].filter(Boolean).join("-");
}

/** @param {Page} page */
function viewName(page) {
  return [fileName(page), page.store.selection.view].join("-");
}

/** @param {Page} page */
function picture(page) {
  const host = /** @type {HTMLElement} */ (page.hosts?.get(page.store.selection.view));
  const { trace } = page;
  const lines = trace ? [trace.manifest.asked.source, `→ ${trace.manifest.translation.text}`] : [];
  return snapshot(trace ? [page.bench.ribbon.host, host] : [host], `${host.getAttribute("aria-label")} · Heedful`, lines);
}

/** @param {Page} page */
async function savePage(page) {
  if (!page.trace) return;
  const place = toUrl({ ...page.store.selection, text: "" }); // the server knows the sentence
  const file = await page.source.page(page.trace.id, place);
  save(`${fileName(page)}.html`, "text/html", file);
}
