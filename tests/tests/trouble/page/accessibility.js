// What keeps people from using the view that is shown, who do not see it or have no mouse.

const problems = [];
const all = (selector) => [...document.querySelectorAll(selector)];
const complain = (elements, problem) =>
  problems.push(...elements.map((element) => `${problem}: ${element.outerHTML.slice(0, 120)}`));
const says = (element) => (element.getAttribute("aria-label") ?? element.textContent).trim() !== "";
const isHidden = (element) => element.closest("[aria-hidden=true]") !== null;

complain(all("input, select, textarea").filter((field) => ![...field.labels].some(says)), "no label");
complain(all("button, a, th, h1, h2, h3, figcaption").filter((element) => !says(element)), "no text");
complain(all("a").filter((link) => !link.href), "a link to nowhere");
complain(all("table").filter((table) => !table.caption || !says(table.caption)), "no caption");
complain(all("th").filter((head) => !["col", "row"].includes(head.scope)), "no scope");
complain(all("img, svg, meter, [role=img]").filter((image) => !isHidden(image) && !image.ariaLabel), "no aria-label");

const headings = all("h1, h2, h3, h4, h5, h6");
const level = (heading) => (heading ? Number(heading.tagName[1]) : 0);
complain(headings.filter((heading, index) => level(heading) > level(headings[index - 1]) + 1), "a level is skipped");
complain(headings.filter((heading) => level(heading) === 1).slice(1), "a second h1");

const ids = all("[id]").map((element) => element.id);
const count = (selector, wanted) => {
  const found = all(selector).length;
  if (found !== wanted) {
    problems.push(`${found} of ${selector}`);
  }
};
count("h1", 1);
count("main", 1);
count("html[lang]", 1);
count("nav [aria-current=page]", 1);
if (new Set(ids).size !== ids.length) {
  problems.push(`an id is there twice: ${ids}`);
}
return problems;
