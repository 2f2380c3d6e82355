// Elements without markup: whatever a name has in it, it becomes text.

const SVG = "http://www.w3.org/2000/svg";

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined).map((child) =>
    child instanceof Node ? child : String(child)));
  return node;
}

export function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function drawing(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

export function byId(id) {
  return document.getElementById(id);
}

/** Replaces what a node has unless it shows the same already, so that nothing is announced twice. */
export function show(node, value, build) {
  const shown = JSON.stringify(value);
  if (node.dataset.shown === shown) return;
  const key = node.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  node.dataset.shown = shown;
  node.replaceChildren(...[build(value)].flat().filter(Boolean));
  if (key !== undefined) node.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus();
}

export function forget(node) {
  delete node.dataset.shown;
  node.replaceChildren();
}

export function problem(panel, error) {
  const place = panel.querySelector("[data-problem]");
  const text = error ? explained(error) : "";
  if (place.textContent !== text) place.textContent = text;
}

const EXPLAINED = {
  PERMISSION_DENIED: "Your user may not see this",
};

function explained(error) {
  const begin = EXPLAINED[error.reason] ?? "This cannot be shown now";
  return `${begin}: ${error.message}`;
}
