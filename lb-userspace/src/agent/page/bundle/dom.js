// Elements. Text becomes text, never HTML: names of objects are whatever their owners have typed.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element with attributes and children (elements or text). Attributes that are null or
 * false are left out; functions are listeners of the event after `on`. */
export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** The same in SVG. */
export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") {
      element.addEventListener(name.slice(2), value);
    } else if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Shows these children in a region, instead of those before. Whoever uses the keyboard stays where
 * they are, if there is an element of the same `data-key` again. */
export function show(region, ...children) {
  const key = region.contains(document.activeElement) && document.activeElement.dataset.key;
  region.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined));
  if (key) {
    region.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus();
  }
}

/** A part of a view with a heading, and the region below it. */
export function section(title) {
  const region = el("div");
  return { element: el("section", {}, el("h2", {}, title), region), region };
}

/** Names and values. A value may be text or an element; pairs without one are left out. */
export function facts(pairs) {
  const known = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return el("dl", {}, known.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

/** A bar that shows how much of something is used, with the numbers beside it. */
export function bar(used, room, what) {
  const percent = room > 0 ? (100 * used) / room : 0;
  const label = `${what}: ${Math.round(percent)} %`;
  const meter = el("meter", {
    min: 0, max: 100, low: 60, high: 80, optimum: 0, value: percent, "aria-label": label, title: label,
  });
  return el("span", { class: "bar" }, meter, ` ${used.toLocaleString("en")} of ${room.toLocaleString("en")}`);
}
