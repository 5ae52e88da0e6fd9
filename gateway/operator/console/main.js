// The frame: which view is shown, when it is read again, and who may see it.

import { h, patch, setClock, count, zone, switchZone } from "./dom.js";
import { get, follow, decoded, openLink, setKey, hasKey, Refused } from "./api.js";
import { hasDied, setPaused } from "./parts.js";
import * as overview from "./overview.js";
import * as tasks from "./tasks.js";
import * as task from "./task.js";
import * as questions from "./questions.js";
import * as replicas from "./replicas.js";
import * as upstreams from "./upstreams.js";
import * as store from "./store.js";
import * as clients from "./clients.js";

const views = { "": overview, tasks, task, questions, replicas, upstreams, store, clients };
const links = [
  ["#/", "Overview"], ["#/tasks", "Tasks"], ["#/questions", "Questions"],
  ["#/tasks?status=unknown", "Unknown outcomes"], ["#/replicas", "Replicas"], ["#/upstreams", "Upstreams"], ["#/store", "Store"], ["#/clients", "Clients"],
];
const pollEvery = 10_000; // without a stream of changes
const leastPause = 1000; // between two reads for changes

const main = document.getElementById("main");
const live = document.getElementById("live");
const nav = document.getElementById("nav");

let shown = null; // the view, its parameters and what it has read
let reading = null; // the read under way
let again = false; // read once more after that
let readAt = 0;
let problem = ""; // why what is shown is not fresh
let streaming = false;
let badges = {}; // by link

// route shows the view that the address names.
function route() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/");
  const view = Object.hasOwn(views, name) ? views[name] : overview;
  const params = new URLSearchParams(query);
  shown?.stop.abort();
  const fresh = shown?.view !== view || view === task;
  shown = { view, params, id: rest.map(decoded).join("/"), data: null, stop: new AbortController(), drawn: false };
  document.title = `${view.title(shown.params, shown.id)} · taskgate`;
  if (fresh) main.replaceChildren(h("div", { class: "panel skeleton", "aria-busy": "true" }));
  if (fresh && document.activeElement !== document.body) main.focus({ preventScroll: true });
  if (fresh) scrollTo(0, 0);
  reading = null;
  drawNav();
  nav.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  read();
}

// context is what a view gets to work with.
const context = (s) => ({
  id: s.id, params: s.params, signal: s.stop.signal, redraw: () => draw(s), reload: read, state: (s.state ??= {}),
  // setParams changes the address, and with it what is shown.
  setParams: (params) => {
    const text = String(params);
    location.hash = `#/${Object.keys(views).find((n) => views[n] === s.view)}${text && "?" + text}`;
  },
});

// read reads the data of the view and draws it. One read is under way at a time.
async function read() {
  if (reading) {
    again = true;
    return;
  }
  const s = shown, mine = {};
  reading = mine;
  readAt = Date.now();
  try {
    const data = await s.view.load(context(s));
    if (s !== shown) return;
    s.data = data;
    setClock(data.date);
    problem = "";
    draw(s);
    readBadges();
  } catch (e) {
    if (s !== shown || e.name === "AbortError") return;
    if (e instanceof Refused && (e.status === 401 || e.status === 403)) return signIn(e);
    problem = e instanceof Refused ? e.message : "the gateway does not answer; trying again";
    if (!s.data) main.replaceChildren(h("div", { class: "notice bad", role: "alert" }, h("b", null, "Cannot show this"), problem));
  } finally {
    if (reading === mine) reading = null;
    drawLive();
  }
  if (again) wake();
}

// draw shows the data as of now. A view that is there already is only changed where it differs.
function draw(s) {
  if (s !== shown || !s.data) return;
  const nodes = s.view.render(s.data, context(s));
  if (s.drawn) patch(main, nodes);
  else main.replaceChildren(...[nodes].flat(Infinity).filter(Boolean));
  s.drawn = true;
}

// wake reads soon: at once, or after the pause since the last read.
let waiting = 0;
function wake() {
  again = false;
  if (document.hidden || waiting) return;
  waiting = setTimeout(() => {
    waiting = 0;
    if (shown && !signedOut) read();
  }, Math.max(0, readAt + leastPause - Date.now()));
}

// readBadges reads the numbers beside the links, at most each 5 s.
let badgesAt = 0;
async function readBadges() {
  if (Date.now() - badgesAt < 5000) return;
  badgesAt = Date.now();
  try {
    const [q, r, u] = await Promise.all([get("questions"), get("replicas"), get("upstreams")]);
    const paused = setPaused(u.upstreams);
    const gone = r.replicas.filter(hasDied).length;
    badges = {
      "#/questions": q.questions.length > 0 && { text: count(q.questions.length) + (q.more ? "+" : "") },
      "#/replicas": gone > 0 && { text: `${gone} gone`, alert: true },
      "#/upstreams": paused.length > 0 && { text: `${paused.length} paused` },
    };
    drawNav();
  } catch { /* the view says what is wrong */ }
}

function drawNav() {
  const at = location.hash || "#/";
  const unknown = at.startsWith("#/tasks") && shown.params.getAll("status").join() === "unknown";
  patch(nav, links.map(([to, name]) => {
    const badge = badges[to];
    const current = to.includes("?") ? unknown : to === "#/" ? shown.view === overview
      : !unknown && (at.startsWith(to) || (to === "#/tasks" && shown.view === task));
    return h("a", { href: to, "aria-current": current ? "page" : null }, name,
      badge && h("span", { class: `badge ${badge.alert ? "alert" : ""}` }, badge.text));
  }));
}

// lateAfter is how long an answer may take before what is shown is no longer called live.
const lateAfter = 2000;

function drawLive() {
  const late = reading && Date.now() - readAt >= lateAfter;
  const text = signedOut ? "" : problem ? problem : late ? "The gateway waits for its store" : streaming ? "Live" : `Every ${pollEvery / 1000} s`;
  live.className = `live ${problem || late ? "off" : streaming ? "on" : ""}`;
  if (live.textContent !== text) live.textContent = text;
}

// signIn asks for a key.
let signedOut = false;
function signIn(refusal) {
  signedOut = true;
  const wrong = hasKey();
  setKey("");
  const field = h("input", { type: "password", name: "key", autocomplete: "current-password", required: true, "aria-describedby": "signin-more" });
  main.replaceChildren(h("section", { class: "panel signin" },
    h("h1", null, "Sign in"),
    h("p", { class: "muted", id: "signin-more" }, "The key of an operator, by admin_auth. Without admin_auth the log of the gateway has a link with a token: look for ", h("code", null, "console"), "."),
    (wrong || refusal.status === 403) && h("p", { class: "notice bad", role: "alert" }, refusal.message),
    h("form", {
      onsubmit: (e) => {
        e.preventDefault();
        setKey(field.value.trim());
        signedOut = false;
        route();
        listen();
      },
    }, h("label", { class: "field" }, "Key", field), h("button", { class: "main" }, "Sign in"))));
  field.focus();
  drawLive();
}

// listen follows the stream of changes for as long as there is one.
let listening = false;
async function listen() {
  if (listening) return;
  listening = true;
  for (let pause = 1000; !signedOut; pause = Math.min(pause * 2, pollEvery)) {
    try {
      await follow(() => {
        streaming = true;
        pause = 1000;
        wake();
      });
    } catch (e) {
      if (e instanceof Refused && (e.status === 401 || e.status === 403)) break;
    }
    streaming = false;
    drawLive();
    await new Promise((done) => setTimeout(done, pause));
  }
  listening = false;
}

const zoneButton = document.getElementById("zone");
zoneButton.textContent = zone();
zoneButton.onclick = () => {
  switchZone();
  zoneButton.textContent = zone();
  draw(shown);
};

document.getElementById("skip").onclick = (e) => {
  e.preventDefault();
  main.focus();
};
await openLink();
addEventListener("hashchange", route);
document.addEventListener("visibilitychange", wake);
setInterval(() => {
  if (document.hidden || signedOut || !shown) return;
  draw(shown); // ages grow
  drawLive();
  if (Date.now() - readAt >= pollEvery) wake();
}, 1000);
route();
listen();
