// New content that does not take the keyboard away from who is using it.

/**
 * Replace the children of a host; if one of them had the focus, its successor of the same name gets it.
 * @param {HTMLElement} host @param {...(Node | string)} children
 */
export function refill(host, ...children) {
  const active = /** @type {HTMLElement | null} */ (document.activeElement);
  const before = active && active !== host && host.contains(active) ? name(active) : null;
  host.replaceChildren(...children);
  if (before === null) return;
  const all = /** @type {NodeListOf<HTMLElement>} */ (host.querySelectorAll("button, select, input, a, summary, [tabindex]"));
  [...all].find((each) => name(each) === before)?.focus({ preventScroll: true });
}

/** What a control is called, apart from what it holds. @param {HTMLElement} control */
function name(control) {
  const told = control.dataset.name ?? control.getAttribute("aria-label") ?? control.closest("label")?.firstElementChild?.textContent ?? control.textContent;
  return `${control.tagName} ${told}`;
}
