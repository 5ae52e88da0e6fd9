// One task: what happened to it, when and where.

import { h, age, dayOf, hours, duration, time, count } from "./dom.js";
import { get, cancel, rerun } from "./api.js";
import { panel, statusOf, classOf, tookOf, isOpen, who, foreign, listOf, open, confirm, pausedMark } from "./parts.js";

export const title = (params, id) => `Task ${id.slice(0, 8)}`;

export async function load({ id, signal }) {
  return get(`tasks/${encodeURIComponent(id)}`, {}, signal);
}

export function render(task, ctx) {
  return [
    h("div", { class: "head" },
      h("h1", null, foreign(task.tool), h("span", { class: "muted" }, ` at ${task.upstream}`)),
      statusOf(task), pausedMark(task.upstream, task.tool),
      h("span", { class: "end" },
        task.trace_url && h("a", { class: "button", href: task.trace_url, target: "_blank", rel: "noreferrer" }, "Trace"),
        h("button", { onclick: () => download(task), title: "What the interface says of this task" }, "JSON"),
        task.rerunnable && h("button", { onclick: () => askAgain(task, ctx) }, "Run again…"),
        isOpen(task) && h("button", { class: "danger", onclick: () => ask(task, ctx) }, "Cancel…"))),
    h("div", { class: "columns" },
      h("div", { class: "stack" },
        panel("Timeline", {}, timeline(task)),
        content(task)),
      panel("Facts", {}, facts(task, ctx))),
  ];
}

const methods = {
  "elicitation/create": "asks the user", "sampling/createMessage": "asks the model", "roots/list": "asks for the roots",
};

// happened are the words for each kind of event, and the colour of its dot.
const happened = {
  rerun: ["Run again by an operator", ""],
  made: ["Task made", ""],
  queued: ["Queued: the call waits for its turn", ""],
  sent: ["Sent to the server", "working"],
  asked: ["The server asks", "input_required"],
  answered: ["Answered by the client", "working"],
  withdrawn: ["Question withdrawn", ""],
  adopted: ["Taken over", "working"],
  resumed: ["Resumed at the server", "working"],
  retried: ["Sent again", "working"],
  cancelled: ["Cancelled", "cancelled"],
  left: ["Left by its replica, which stops", ""],
  given_up: ["Given up by its client, and kept", ""],
  picked_up: ["Picked up by the same call made again", "working"],
  ended: ["Ended", ""],
};

function timeline(task) {
  const first = task.events?.[0]?.at ?? task.begun_at; // a call is often sent before it becomes a task
  const begin = Date.parse(first);
  let day = "";
  const item = (key, kind, at, since, what, detail) => h("li", { class: kind, "data-key": key },
    h("span", { class: "at" }, at), h("span", { class: "since" }, since),
    h("span", { class: "what" }, what, detail && h("span", { class: "detail" }, detail)));
  const items = (task.events ?? []).flatMap((e, i) => {
    const [what, dot] = happened[e.kind] ?? [e.kind, ""];
    const kind = e.kind !== "ended" ? dot : classOf(task.status);
    const took = Date.parse(e.at) - begin;
    const line = item(`event ${i}`, kind, time(e.at, hours(e.at)), took > 0 ? `+${duration(took)}` : "", what, detailOf(e));
    if (dayOf(e.at) === day) return [line];
    day = dayOf(e.at);
    return [h("li", { class: "day", "data-key": `day ${day}` }, day || "Today"), line];
  });
  if (isOpen(task)) {
    items.push(item("now", "running", "now", `+${age(first)}`,
      task.status === "input_required" ? "Waits for the client's answer" : task.status === "queued" ? "Waits for its turn" : "Running",
      `${task.message ? `${task.message}; ` : ""}last change ${age(task.updated_at)} ago`));
  }
  if (items.length === 0) return h("p", { class: "empty" }, "Nothing is kept of what happened.");
  return h("ol", { class: "timeline" }, items);
}

const detailOf = (e) => (methods[e.detail] ? `It ${methods[e.detail]} (${e.detail})` : e.detail);

function facts(task, ctx) {
  const row = (name, value) => value !== undefined && value !== null && value !== "" && value !== false && [h("dt", null, name), h("dd", null, value)];
  return h("dl", { class: "facts" },
    row("Id", [h("span", { class: "mono" }, task.id), " ", h("button", { class: "plain", onclick: (e) => copy(task.id, e.target) }, "Copy")]),
    row("State", [statusOf(task), task.message && h("div", { class: "muted" }, task.message)]),
    row("Given up", task.kept_until && [isOpen(task) ? "Its client gave up; kept until " : "Its client gave up; its result is kept until ", time(task.kept_until)]),
    row("Picked up", task.picked_up && [task.picked_up.client ? [foreign(task.picked_up.client), ", "] : "", time(task.picked_up.at)]),
    row("Runs again", task.rerun_of && taskLink(task.rerun_of)),
    row("Run again as", task.rerun_as && taskLink(task.rerun_as)),
    row("Principal", task.principal ? h("a", { href: listOf({ principal: task.principal, status: open }), title: "What runs for this principal" }, foreign(task.principal)) : who("")),
    row("Replica", task.replica && (isOpen(task) ? h("a", { href: listOf({ replica: task.replica }) }, task.replica) : task.replica)),
    row("Sent", task.begun_at < task.created_at && time(task.begun_at)),
    row("Made", time(task.created_at)),
    row("Changed", [time(task.updated_at), h("span", { class: "muted" }, ` ${age(task.updated_at)} ago`)]),
    row(isOpen(task) ? "Age" : "Took", tookOf(task)),
    row("Questions", task.questions > 0 && `${task.questions} open`),
    row("Result", task.result_size > 0 && `${count(task.result_size)} bytes`),
    row("Kept until", task.expires_at && time(task.expires_at)),
    row("Trace", task.trace_id && h("span", { class: "mono" }, task.trace_id)),
    row("Kind", task.hidden && "A stored call that is no task: its client waits for it, or gave it up"));
}

const taskLink = (id) => h("a", { class: "mono", href: `#/task/${encodeURIComponent(id)}` }, id.slice(0, 8));

// download saves what the interface says of a task.
function download({ date, ...task }) {
  const href = URL.createObjectURL(new Blob([JSON.stringify(task, null, 2)], { type: "application/json" }));
  h("a", { href, download: `task-${task.id}.json` }).click();
  setTimeout(() => URL.revokeObjectURL(href), 1000);
}

async function copy(text, button) {
  await navigator.clipboard.writeText(text).then(() => { button.textContent = "Copied"; }, () => { button.textContent = "Not copied"; });
}

// content is what the call is about, where admin_content shows it.
function content(task) {
  if (!task.content_shown) {
    return panel("Content", {}, h("p", { class: "empty" }, "Arguments, results, questions and answers are hidden: ", h("code", null, "admin_content"), " is off."));
  }
  const part = (name, value) => value !== undefined && h("div", null, h("h3", null, name), h("pre", { tabindex: 0 }, text(value)));
  const parts = [
    part("Arguments", task.arguments),
    (task.asked ?? []).map((q) => [
      part(`Question ${q.key}${q.method ? `, ${q.method}` : ""}, ${q.state}`, q.params ?? (q.answer === undefined ? "is not kept any more" : undefined)),
      part(`Answer to ${q.key}`, q.answer),
    ]),
    part("Result", task.result),
    part("Error", task.error),
    task.too_large && h("p", { class: "muted" }, "The result is too large to be shown."),
  ].flat(Infinity).filter(Boolean);
  return panel("Content", {}, parts.length ? h("div", { class: "content" }, parts) : h("p", { class: "empty" }, "Nothing is kept of arguments and result."));
}

const text = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));

function ask(task, ctx) {
  confirm({
    title: "Cancel this task?",
    body: h("p", null, `${task.tool} at ${task.upstream}, for ${task.principal || "anonymous"}, runs for ${tookOf(task)}. Its client sees it as cancelled, and the call at the server is cancelled, too.`),
    action: "Cancel the task",
    run: async () => {
      try {
        await cancel(task.id);
      } catch (e) {
        if (e.status !== 409) throw e;
        return h("p", null, "The task had ended already.");
      } finally {
        ctx.reload();
      }
    },
  });
}

function askAgain(task, ctx) {
  confirm({
    title: "Run this call again?",
    body: h("p", null, "The server may have done the work already".concat(task.status === "unknown" ? "." : " in part."),
      " A new task of ", h("b", null, foreign(task.principal || "nobody in particular")), " calls ", foreign(task.tool), ` at ${task.upstream} with the same arguments.`),
    action: "Run it again",
    run: async () => {
      const made = await rerun(task.id);
      ctx.reload();
      return h("p", null, "It runs again as ", taskLink(made.id), ".");
    },
  });
}
