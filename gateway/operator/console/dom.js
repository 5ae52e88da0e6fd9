// Elements, and how a view that is drawn again changes only what is different.

const svgSpace = "http://www.w3.org/2000/svg";

// h makes an element. Strings become text nodes, so markup in them stays text. A property that
// begins with "on" is a handler; true and false set and leave out an attribute.
export function h(tag, props, ...children) {
  const node = tag.startsWith("svg:")
    ? document.createElementNS(svgSpace, tag.slice(4))
    : document.createElement(tag);
  node.handlers = {};
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === false || value === undefined || value === null) continue;
    if (name.startsWith("on")) node[name] = node.handlers[name] = value;
    else if (name === "checked") node.checked = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...flat(children));
  return node;
}

const flat = (children) => children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false && c !== "");

// patch makes the children of an element equal to the wanted ones and keeps each node that can stay:
// the focus, a selection and the scroll position survive. Rows are matched by data-key.
export function patch(parent, wanted) {
  const fresh = document.createElement("div");
  fresh.append(...flat([wanted]));
  patchChildren(parent, fresh);
}

function patchChildren(old, fresh) {
  const wanted = [...fresh.childNodes];
  const stay = new Set(wanted.map(keyOf).filter(Boolean));
  const keyed = new Map();
  for (const child of [...old.childNodes]) {
    const key = keyOf(child);
    if (key && !stay.has(key)) child.remove();
    else if (key) keyed.set(key, child);
  }
  let at = old.firstChild;
  for (const want of wanted) {
    const key = keyOf(want);
    const have = key ? keyed.get(key) : at && !keyOf(at) && at.nodeName === want.nodeName ? at : undefined;
    if (!have) {
      old.insertBefore(want, at);
      continue;
    }
    if (have === at) at = at.nextSibling;
    else old.insertBefore(have, at);
    patchNode(have, want);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

const keyOf = (node) => node.dataset?.key;

function patchNode(have, want) {
  if (have.nodeType === Node.TEXT_NODE) {
    if (have.data !== want.data) have.data = want.data;
    return;
  }
  for (const { name } of [...have.attributes]) {
    if (!want.hasAttribute(name) && !(name === "open" && have.nodeName === "DETAILS")) have.removeAttribute(name);
  }
  for (const { name, value } of want.attributes) {
    if (have.getAttribute(name) !== value) have.setAttribute(name, value);
  }
  if (have.type === "checkbox") have.checked = want.checked;
  for (const name of Object.keys(have.handlers ?? {})) if (!want.handlers[name]) have[name] = null;
  Object.assign(have, want.handlers);
  have.handlers = want.handlers;
  patchChildren(have, want);
}

// Time: the clock is that of the gateway, so ages are right on a machine whose clock is not.
let skew = 0;

// setClock takes the Date header of an answer. It has whole seconds only.
export function setClock(date) {
  const off = Date.parse(date) - Date.now();
  skew = Math.abs(off) > 2000 ? off : 0;
}

// now is the time in milliseconds.
export const now = () => Date.now() + skew;

// duration writes milliseconds with two units at most.
export function duration(ms) {
  if (!Number.isFinite(ms)) return "–";
  const s = Math.max(0, ms) / 1000;
  if (s < 1) return `${Math.round(s * 1000)}ms`;
  if (s < 10) return `${s.toFixed(1)}s`;
  if (s < 60) return `${Math.floor(s)}s`;
  if (s < 3600) return `${Math.floor(s / 60)}m ${pad(Math.floor(s % 60))}s`;
  if (s < 86400) return `${Math.floor(s / 3600)}h ${pad(Math.floor((s % 3600) / 60))}m`;
  return `${Math.floor(s / 86400)}d ${Math.floor((s % 86400) / 3600)}h`;
}

// age writes how long ago something was, in whole seconds: it is drawn each second.
export const age = (at) => duration(Math.max(1000, Math.floor((now() - Date.parse(at)) / 1000) * 1000)).replace(/\.0s$/, "s");

const pad = (n) => String(n).padStart(2, "0");

// Times of day are those of the browser, or UTC where that was chosen.
const zoneSlot = "taskgate.utc";
let utc = localStorage.getItem(zoneSlot) === "1";

// zone names the clock that is shown, and switchZone chooses the other one.
export const zone = () => (utc ? "UTC" : "Local time");
export function switchZone() {
  utc = !utc;
  localStorage.setItem(zoneSlot, utc ? "1" : "0");
}

// inZone is a time whose fields in UTC are those of the clock that is shown.
function inZone(at) {
  const d = new Date(at);
  return utc ? d : new Date(d.getTime() - d.getTimezoneOffset() * 60000);
}

// dayOf names the day of a time; it is empty for today.
export function dayOf(at) {
  const d = inZone(at);
  return d.toISOString().slice(0, 10) === inZone(now()).toISOString().slice(0, 10) ? "" : d.toLocaleDateString("en-GB", { day: "numeric", month: "short", timeZone: "UTC" });
}

// hours writes the time of day.
export function hours(at) {
  return inZone(at).toISOString().slice(11, 19);
}

// clock writes a time of today as hours, minutes and seconds, and another one with its day.
export const clock = (at) => `${dayOf(at)} ${hours(at)}`.trim();

// time is an element for a moment; its tooltip has the whole of it.
export const time = (at, text = clock(at)) => h("time", { datetime: at, title: new Date(at).toISOString() }, text);

// count writes a number with its thousands apart.
export const count = (n) => (n ?? 0).toLocaleString("en-US").replaceAll(",", " ");

// plural writes a number and its noun.
export const plural = (n, one, many = one + "s") => `${count(n)} ${n === 1 ? one : many}`;
