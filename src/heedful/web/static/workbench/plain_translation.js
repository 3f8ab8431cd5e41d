// The page of a server without PyTorch: it translates, and says how to inspect the model.

import { h } from "heedful/parts/dom.js";

/** @typedef {import("heedful/data/server_source.js").ServerSource} ServerSource */

/** Show a form that translates in place of the workbench. @param {HTMLElement} host @param {ServerSource} source @param {string} note */
export async function showPlainTranslation(host, source, note) {
  const languages = await source.fetchLanguages();
  const directions = languages.flatMap(({ code, targets }) => targets.map((target) => ({ source: code, target })));
  const direction = h("select", { "aria-label": "Languages" }, directions.map(({ source: from, target }, index) => h("option", { value: index }, `${from} → ${target}`)));
  const text = h("textarea", { rows: 4, dir: "auto", "aria-label": "Text" });
  const result = h("div", { class: "result", dir: "auto", role: "status", style: "white-space: pre-wrap" });
  const translate = async (/** @type {Event} */ event) => {
    event.preventDefault();
    result.setAttribute("aria-busy", "true");
    try {
      const { translations } = await source.translate({ text: text.value, ...directions[direction.value] });
      result.textContent = translations[0].text;
    } catch (error) {
      result.textContent = /** @type {Error} */ (error).message;
    }
    result.removeAttribute("aria-busy");
  };
  host.replaceChildren(h("form", { onsubmit: translate }, text, h("p", null, direction, " ", h("button", null, "Translate")), result), h("p", { class: "legend" }, note));
}
