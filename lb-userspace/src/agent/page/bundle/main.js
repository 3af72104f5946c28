// Which view is shown, and how often it asks the agent.

import { ask } from "./api.js";
import { el, show } from "./dom.js";
import * as admission from "./admission.js";
import * as explain from "./explain.js";
import * as flows from "./flows.js";
import * as node from "./node.js";
import * as overview from "./overview.js";
import * as service from "./service.js";
import * as services from "./services.js";

/** Milliseconds between two looks. */
const INTERVAL = 2000;

/** By the first part of what is behind `#/`. A view's `open` fills the page for the rest of it, and
 * returns what brings it up to date. Those with a name are in the list of views. */
const VIEWS = {
  "": { ...overview, name: "Overview" },
  services: { ...services, name: "Services" },
  service,
  flows: { ...flows, name: "Flows" },
  admission: { ...admission, name: "Admission" },
  explain: { ...explain, name: "Explain" },
  node: { ...node, name: "Node" },
};

const byId = (id) => document.getElementById(id);
const main = byId("main");

let paused = false;
/** Counts views, so that an answer for one that is gone shows nowhere. */
let opened = 0;
let refresh = async () => {};
let timer;

function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [first, ...rest] = path.split("/").map(decodeURIComponent);
  return { first, rest, parameters: new URLSearchParams(query) };
}

function open() {
  opened += 1;
  const { first, rest, parameters } = route();
  const view = VIEWS[first];
  main.replaceChildren();
  if (view) {
    document.title = `${view.name ?? rest.join("/")} · node-lb`;
    main.append(el("h1", {}, view.name ?? rest.join("/")));
    refresh = view.open(main, rest, parameters);
  } else {
    main.append(el("p", {}, "There is no such view."));
    refresh = async () => {};
  }
  list(first === "service" ? "services" : first);
  look();
}

/** The list of views, in which one is current. */
function list(current) {
  const named = Object.entries(VIEWS).filter(([, view]) => view.name);
  show(byId("views"), named.map(([path, view]) => el("li", {},
    el("a", { href: `#/${path}`, "data-key": path, "aria-current": path === current ? "page" : null }, view.name))));
}

/** Brings the view up to date, and again after a while. */
async function look() {
  clearTimeout(timer);
  const view = opened;
  let trouble;
  try {
    await refresh();
  } catch (error) {
    trouble = error.message;
  }
  if (view !== opened) {
    return;
  }
  byId("trouble").hidden = !trouble;
  if (trouble) {
    byId("trouble").textContent = `This is no longer up to date: ${trouble}.`;
    byId("age").textContent = "";
  } else {
    const time = new Date();
    byId("age").textContent = paused ? `Paused at ${time.toLocaleTimeString("en-GB")}` : "Live";
  }
  main.dataset.ready = "true";
  if (!paused) {
    timer = setTimeout(look, INTERVAL);
  }
}

function pause(wanted) {
  paused = wanted;
  const button = byId("pause");
  button.setAttribute("aria-pressed", String(paused));
  button.textContent = paused ? "Go on" : "Pause";
  look();
}

/** `p` pauses, `/` goes to the view's filter. */
function pressed(event) {
  const types = event.target.matches("input, select, textarea");
  if (types || event.ctrlKey || event.metaKey || event.altKey) {
    return;
  }
  if (event.key === "p") {
    pause(!paused);
  } else if (event.key === "/") {
    const field = main.querySelector("input");
    if (field) {
      event.preventDefault();
      field.focus();
    }
  }
}

byId("skip").addEventListener("click", () => main.focus());
byId("pause").addEventListener("click", () => pause(!paused));
document.addEventListener("keydown", pressed);
// Nobody looks at a page that is hidden.
document.addEventListener("visibilitychange", () => {
  clearTimeout(timer);
  if (!document.hidden && !paused) {
    look();
  }
});
addEventListener("hashchange", () => {
  delete main.dataset.ready;
  open();
  main.focus();
});
open();
ask("status").then((status) => {
  byId("node").textContent = status.node;
}, () => {});
