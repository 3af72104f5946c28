// How well the text of the view that is shown differs from what is behind it: WCAG asks for 4.5 to 1.

const LEAST = 4.5;

const parts = (colour) => colour.match(/[\d.]+/g).map(Number);
/** Between 0, black, and 1, white. */
const luminance = ([red, green, blue]) => {
  const linear = (part) => (part <= 0.04045 * 255 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
};
const background = (element) => parts(getComputedStyle(element).backgroundColor);
const isOpaque = (colour) => (colour[3] ?? 1) === 1;
const behind = (element) => {
  const colour = background(element);
  return isOpaque(colour) || !element.parentElement ? colour : behind(element.parentElement);
};
const contrast = (element) => {
  const colours = [parts(getComputedStyle(element).color), behind(element)];
  const [darker, lighter] = colours.map(luminance).toSorted((a, b) => a - b);
  return (lighter + 0.05) / (darker + 0.05);
};
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const shown = new Set();
while (texts.nextNode()) {
  const element = texts.currentNode.parentElement;
  if (texts.currentNode.data.trim() && element.checkVisibility() && !element.closest("option")) {
    shown.add(element);
  }
}
const weak = [...shown].filter((element) => contrast(element) < LEAST);
return {
  isDark: luminance(background(document.body)) < 0.1,
  problems: weak.map((element) => `${contrast(element).toFixed(1)}: ${element.outerHTML.slice(0, 120)}`),
  kinds: arguments[0].filter((selector) => [...shown].some((element) => element.matches(selector))),
};
