// Small helpers for SVG elements.

const NAMESPACE = "http://www.w3.org/2000/svg";

/** An SVG element with attributes and children; a string child is text. */
export function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}
