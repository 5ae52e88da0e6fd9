// What several views show: statuses, tables, links to tasks, and the dialog that asks before a change.

import { h, age, duration, plural, time } from "./dom.js";

// statuses are the words for the statuses of the interface.
export const statuses = {
  queued: "Queued", working: "Running", input_required: "Waits for input", completed: "Completed", tool_error: "Tool error", failed: "Failed",
  cancelled: "Cancelled", unknown: "Outcome unknown",
};

// open are the statuses of tasks that have not ended, and failed those of tasks that went wrong.
export const open = ["queued", "working", "input_required"];
export const failed = ["failed", "tool_error"];

// isOpen reports whether a task has not ended.
export const isOpen = (task) => open.includes(task.status);

// statusOf says where a task is.
export const statusOf = (task) => h("span", { class: `status ${classOf(task.status)}` }, statuses[task.status] ?? task.status);

// classOf is the class of a status, which has its colour.
export const classOf = (status) => (status === "tool_error" ? "failed" : status);

// foreign is a name that a client or a server has chosen: cut where it is long, and unable to turn the text around it.
export const foreign = (name, props) => h("bdi", { class: "foreign", title: name, ...props }, name);

// paused is what operators have paused, as it was last read, and setPaused takes it from a list of upstreams.
let paused = [];
export function setPaused(upstreams) {
  paused = upstreams.flatMap((u) => u.paused ?? []);
  return paused;
}

// pausedMark marks an upstream, or a tool of it, whose calls are paused.
export function pausedMark(upstream, tool) {
  const p = paused.find((one) => one.upstream === upstream && (!one.tool || one.tool === tool));
  return p && h("span", { class: "tag paused", title: `Paused by ${p.operator || "an operator"} since ${p.since}` }, "paused");
}

// hasDied reports whether a replica is gone that nobody has stopped.
export const hasDied = (replica) => !replica.alive && !replica.draining;

// tookOf is how old a task is that has not ended, and how long another one took.
export const tookOf = (task) =>
  isOpen(task) ? age(task.begun_at) : duration(Date.parse(task.updated_at) - Date.parse(task.begun_at));

// shortID is enough of an id to know a task by.
export const shortID = (id) => id.slice(0, 8);

// taskLink leads to a task.
export const taskLink = (id, text = shortID(id)) =>
  h("a", { class: "mono", href: `#/task/${encodeURIComponent(id)}`, title: id }, text);

// who names a principal.
export const who = (principal) => (principal && foreign(principal)) || h("span", { class: "muted" }, "anonymous");

// listOf writes the address of the list of tasks with these filters.
export function listOf(filters) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(filters)) for (const one of [value].flat()) params.append(name, one);
  return `#/tasks?${params}`;
}

// table makes a table of rows. A column is {name, class, cell}, with the name as a label on phones and a hint as
// a tooltip; rows have a key. Roles are said aloud, for
// on a phone the rows are no table by their style.
export function table({ label, columns, rows, key, classOf, cards = true, ...props }) {
  return h("div", { class: "scroll" }, h("table", { role: "table", "aria-label": label, class: cards ? "cards-on-phone" : "", ...props },
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" },
      columns.map((c) => h("th", { role: "columnheader", scope: "col", class: c.class }, c.head ?? c.name)))),
    h("tbody", { role: "rowgroup" }, rows.map((row) =>
      h("tr", { role: "row", "data-key": key(row), class: classOf?.(row) },
        columns.map((c) => {
          const value = c.cell(row);
          const zero = c.class?.includes("number") && (value === 0 || value === "–");
          return h("td", { role: "cell", class: `${c.class ?? ""}${zero ? " zero" : ""}`, "data-name": c.label, title: c.hint?.(row) }, zero ? "–" : value);
        }))))));
}

// panel is a part of a page with a heading.
export const panel = (title, { end, ...props } = {}, ...children) =>
  h("section", { class: "panel", "aria-label": title, ...props }, h("header", null, h("h2", null, title), end && h("span", { class: "end" }, end)), children);

// ago is a moment as its age, with the moment as a tooltip.
export const ago = (at) => time(at, `${age(at)} ago`);

const dialog = document.getElementById("dialog");

// confirm asks before a change and shows how it goes on. run gets a function that shows progress, and
// returns what to say at the end: nothing closes the dialog.
export function confirm({ title, body, action, run }) {
  const back = document.activeElement;
  const show = (content, ...buttons) => {
    dialog.replaceChildren(h("h2", { id: "dialog-title" }, title), ...[content].flat().filter(Boolean), h("div", { class: "buttons" }, buttons));
    buttons.at(-1)?.focus();
  };
  const close = () => dialog.close();
  const act = async () => {
    const bar = h("progress", { max: 1, "aria-label": "Progress" });
    const text = h("p", { role: "status" });
    show([text, bar]);
    let end;
    try {
      end = await run((done, all) => {
        bar.setAttribute("max", all);
        bar.setAttribute("value", done);
        text.textContent = `${done} of ${all}`;
      });
    } catch (e) {
      end = h("p", { role: "alert" }, `It failed: ${e.message}`);
    }
    if (end) show(end, h("button", { class: "main", onclick: close }, "Close"));
    else close();
  };
  const leave = h("button", { onclick: close }, action ? "Go back" : "Close");
  if (action) show(body, leave, h("button", { class: "danger main", onclick: act }, action));
  else show(body, leave);
  leave.focus();
  dialog.onclose = () => back?.isConnected && back.focus();
  dialog.showModal();
  leave.focus();
}

// said writes what became of several tasks that were to be cancelled.
export function said({ done, ended, failed }) {
  return h("p", null, [
    `${plural(done, "task")} cancelled.`,
    ended > 0 && ` ${ended} had ended already.`,
    failed.length > 0 && ` ${plural(failed.length, "task")} could not be cancelled: ${failed[0]}`,
  ].filter(Boolean).join(""));
}
