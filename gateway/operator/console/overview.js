// What runs now, what needs attention, and the last hour.

import { h, age, count, plural, now } from "./dom.js";
import { get } from "./api.js";
import { panel, table, statusOf, tookOf, taskLink, who, foreign, listOf, open, failed, ago, hasDied, setPaused, pausedMark } from "./parts.js";
import { bars, lines, quantile } from "./charts.js";

export const title = () => "Overview";

const statsEvery = 5000; // the last hour changes slowly
const lastHour = { ended_within: "1h" };
let hour = null, hourAt = 0;

// freshHour is the last hour by minute, and how many of the tasks that ended in it have each status.
async function freshHour(signal) {
  if (!hour || Date.now() - hourAt >= statsEvery) {
    const [stats, totals] = await Promise.all([get("stats", {}, signal), get("totals", lastHour, signal)]);
    hour = { stats, ended: totals };
    hourAt = Date.now();
  }
  return hour;
}

export async function load({ signal }) {
  const [upstreams, replicas, questions, oldest, last] = await Promise.all([
    get("upstreams", {}, signal), get("replicas", {}, signal), get("questions", {}, signal),
    get("tasks", { status: open, order: "oldest", limit: 6 }, signal), freshHour(signal),
  ]);
  setPaused(upstreams.upstreams);
  return { ...upstreams, ...replicas, ...questions, oldest: oldest.tasks, ...last, date: upstreams.date };
}

export function render(data, ctx) {
  const tools = data.upstreams.flatMap((u) => u.tools.map((t) => ({ ...t, upstream: u.name })));
  return [
    h("h1", { class: "unseen" }, "Overview"),
    notices(data),
    figures(data, tools),
    h("div", { class: "pair" }, nowPanel(tools, data), oldestPanel(data.oldest)),
    charts(data.stats, ctx),
  ];
}

const sum = (list, of) => list.reduce((n, one) => n + of(one), 0);

// endedAs is how many of the tasks that ended in the last hour have one of some statuses, as a number to show.
const endedAs = (data, statuses) => sum(statuses, (s) => data.ended.counts[s] ?? 0);
const shownAs = (data, statuses) => `${count(endedAs(data, statuses))}${data.ended.more ? "+" : ""}`;

const freshFor = 10 * 60 * 1000; // a death is alarming for so long

const mostPauses = 3; // that are named one by one

// notices are what an operator should know first.
function notices(data) {
  const gone = data.replicas.filter(hasDied).map((r) =>
    h("div", { class: `notice ${r.tasks > 0 || now() - Date.parse(r.seen_at) < freshFor ? "bad" : ""}`, "data-key": `gone ${r.name}` },
      h("span", null, h("b", null, `Replica ${r.name} is gone`), `, last seen `, ago(r.seen_at), "."),
      h("span", null, r.tasks > 0 ? `${plural(r.tasks, "task")} wait to be taken over.` : "Others have taken over its tasks."),
      h("a", { class: "end", href: "#/replicas" }, "Replicas")));
  const away = data.upstreams.filter((u) => !u.reachable && !u.removed && u.replicas.length > 0).map((u) =>
    h("div", { class: "notice bad", "data-key": `away ${u.name}` },
      h("span", null, h("b", null, `Upstream ${u.name} cannot be reached`), " by ", u.replicas.filter((r) => !r.reachable).map((r) => r.replica).join(", "), "."),
      h("a", { class: "end", href: "#/upstreams" }, "Upstreams")));
  const pauses = data.upstreams.flatMap((u) => u.paused ?? []);
  const paused = pauses.length > mostPauses ? [h("div", { class: "notice", "data-key": "paused" },
    h("span", null, h("b", null, `${plural(pauses.length, "pause")} of tools and upstreams`), ": new calls are refused as busy."),
    h("a", { class: "end", href: "#/upstreams" }, "Upstreams"))] : pauses.map((p) =>
    h("div", { class: "notice", "data-key": `paused ${p.upstream} ${p.tool ?? ""}` },
      h("span", null, h("b", null, p.tool ? ["Tool ", foreign(p.tool), ` at ${p.upstream} is paused`] : `Upstream ${p.upstream} is paused`), " by ", foreign(p.operator || "an operator"), ", ", ago(p.since), ": new calls are refused as busy."),
      h("a", { class: "end", href: "#/upstreams" }, "Upstreams")));
  const unknown = endedAs(data, ["unknown"]);
  const list = [gone, away, paused,
    unknown > 0 && h("div", { class: "notice", "data-key": "unknown" },
      h("span", null, h("b", null, `${plural(unknown, "task")} with an unknown outcome`), " in the last hour: the server may have done the work."),
      h("a", { class: "end", href: listOf({ status: "unknown", ...lastHour }) }, "Show")),
  ].flat().filter(Boolean);
  return list.length > 0 && h("div", { class: "notices", role: "region", "aria-label": "Needs attention", "data-key": "notices" }, list);
}

function figures(data, tools) {
  const running = sum(tools, (t) => t.running), input = sum(tools, (t) => t.input_required), queued = sum(tools, (t) => t.queued);
  const waiting = sum(data.upstreams, (u) => u.queued);
  const alive = data.replicas.filter((r) => r.alive).length, died = data.replicas.filter(hasDied).length;
  const first = data.oldest[0], question = data.questions[0];
  const one = (href, name, number, more) =>
    h("a", { href }, h("span", { class: "name" }, name), h("span", { class: `number ${number === "0" || number === "–" ? "none" : ""}` }, number), h("span", { class: "more" }, more || "\u00a0"));
  return h("div", { class: "figures", "data-key": "figures" },
    one(listOf({ status: "working" }), "Running", count(running), `${plural(sum(data.upstreams, (u) => u.calls), "call")} in flight`),
    one(listOf({ status: "input_required", order: "oldest" }), "Waiting for input", count(input), question && `longest ${age(question.since)}`),
    one(listOf({ status: "queued", order: "oldest" }), "Queued", count(queued), waiting > 0 && `${plural(waiting, "call")} wait for their turn`),
    one(first ? `#/task/${first.id}` : listOf({ status: open }), "Oldest", first ? age(first.begun_at) : "–", first && foreign(`${first.tool} at ${first.upstream}`)),
    one(listOf({ status: failed, ...lastHour }), "Failed", shownAs(data, failed), "ended in the last hour"),
    one(listOf({ status: "unknown", ...lastHour }), "Unknown outcomes", shownAs(data, ["unknown"]), "ended in the last hour"),
    one("#/replicas", "Replicas alive", `${alive}`, died > 0 && `${died} gone`));
}

function nowPanel(tools, data) {
  const queued = new Map(data.upstreams.map((u) => [u.name, u.queued]));
  if (tools.length === 0) {
    const waiting = sum([...queued.values()], (n) => n);
    return panel("Now", {}, h("p", { class: "empty" }, waiting > 0 ? `No task runs. ${plural(waiting, "call")} wait for their turn.` : "No task runs."));
  }
  const cell = (status, n, t) => n > 0 && h("a", { href: listOf({ upstream: t.upstream, tool: t.tool, status }) }, count(n));
  return panel("Now", {}, table({
    label: "What runs now", rows: tools, key: (t) => `${t.upstream} ${t.tool}`,
    columns: [
      { name: "Tool", class: "first", cell: (t) => [h("a", { href: listOf({ upstream: t.upstream, tool: t.tool, status: open }) }, foreign(t.tool)), h("span", { class: "muted" }, ` at ${t.upstream}`), pausedMark(t.upstream, t.tool)] },
      { name: "Running", label: "Running", class: "number tight", cell: (t) => cell("working", t.running, t) || 0 },
      { name: "Input", label: "Input", class: "number tight", cell: (t) => cell("input_required", t.input_required, t) || 0 },
      { name: "Queued", label: "Queued", class: "number tight", cell: (t) => cell("queued", t.queued, t) || 0 },
      { name: "Oldest", label: "Oldest", class: "number tight", cell: (t) => (t.oldest ? age(t.oldest) : "–") },
    ],
  }));
}

function oldestPanel(tasks) {
  const all = h("a", { href: listOf({ status: open, order: "oldest" }) }, "All");
  if (tasks.length === 0) return panel("Longest running", {}, h("p", { class: "empty" }, "Tasks that have not ended are listed here, the oldest first."));
  return panel("Longest running", { end: all }, table({
    label: "The oldest tasks", rows: tasks, key: (t) => t.id,
    columns: [
      { name: "Task", class: "tight", cell: (t) => taskLink(t.id) },
      { name: "Tool", class: "tight", label: "Tool", cell: (t) => foreign(t.tool, { title: `${t.tool} at ${t.upstream}` }) },
      { name: "Age", class: "number tight", cell: tookOf },
      { name: "Principal", class: "tight", cell: (t) => who(t.principal) },
      { name: "State", class: "grow clip", hint: (t) => t.message, cell: (t) => [statusOf(t), t.message && h("span", { class: "muted" }, ` ${t.message}`)] },
    ],
  }));
}

// charts are the last hour. A call counts once, when it is answered; a task again when it ends.
function charts(stats, ctx) {
  const whole = [];
  for (const m of stats.minutes) (m.durations ?? []).forEach((n, i) => { whole[i] = (whole[i] ?? 0) + n; });
  const of = (group, name) => (m) => m[group]?.[name] ?? 0;
  const ended = (m, ...names) => sum(names, (n) => m.ended?.[n] ?? 0);
  const common = { minutes: stats.minutes, redraw: ctx.redraw };
  const at = (q) => ({ value: (m) => (m.durations ? quantile(q, m.durations, stats.bounds) : 0), whole: quantile(q, whole, stats.bounds) });
  return h("div", { class: "charts", "data-key": "charts" },
    h("div", { class: "panel" }, bars({ ...common, title: "Calls by outcome", series: [
      { name: "replied", class: "c-good", value: of("calls", "reply") },
      { name: "became tasks", class: "c-working", value: of("calls", "task") },
      { name: "asked", class: "c-input", value: of("calls", "input_required") },
      { name: "errors", class: "c-bad", value: of("calls", "error") },
    ] })),
    h("div", { class: "panel" }, lines({ ...common, title: "Durations", series: [
      { name: "p50", class: "c-working", ...at(0.5) }, { name: "p95", class: "c-odd", ...at(0.95) },
    ] })),
    h("div", { class: "panel" }, bars({ ...common, title: "Tasks made, and ended below", series: [
      { name: "made", class: "c-working", value: (m) => m.made ?? 0 },
      { name: "completed", class: "c-good", down: true, href: listOf({ status: ["completed"], ...lastHour }), value: (m) => ended(m, "completed") },
      { name: "failed", class: "c-bad", down: true, href: listOf({ status: failed, ...lastHour }), value: (m) => ended(m, "failed", "tool_error", "expired") },
      { name: "cancelled", class: "c-idle", down: true, href: listOf({ status: ["cancelled"], ...lastHour }), value: (m) => ended(m, "cancelled") },
      { name: "unknown", class: "c-odd", down: true, href: listOf({ status: ["unknown"], ...lastHour }), value: (m) => ended(m, "unknown") },
    ] })));
}
