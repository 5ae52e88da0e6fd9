// The list of tasks: filters, pages, and cancelling several of them.

import { h, count, plural, time } from "./dom.js";
import { get, cancel } from "./api.js";
import { table, statusOf, tookOf, taskLink, who, foreign, open, failed, isOpen, confirm, said, pausedMark } from "./parts.js";

export const title = (params) => (isUnknown(params) ? "Unknown outcomes" : "Tasks");

const isUnknown = (params) => params.getAll("status").join() === "unknown";

const pageSize = 50;
const mostTries = 8; // pages that are read on while none of their tasks matches
const mostAtOnce = 6; // tasks that are cancelled at a time
const mostCancelled = 5000; // by one confirmation

// The filters that the address may have, besides the cursor.
const filters = ["status", "upstream", "tool", "principal", "replica", "id", "older_than", "newer_than", "ended_within", "order"];

// chips are the filters that one click sets.
const chips = [
  ["All", []], ["Open", open], ["Queued", ["queued"]], ["Running", ["working"]], ["Waits for input", ["input_required"]],
  ["Completed", ["completed"]], ["Failed", failed], ["Cancelled", ["cancelled"]], ["Unknown outcome", ["unknown"]],
];

// The numbers beside the filters are read for each view of the list, and again after a while: the store reads each task for them.
const totalsEvery = 10000;

async function totalsFor(query, state, signal) {
  const { status, order, ...rest } = query;
  const same = JSON.stringify(rest);
  if (state.totalsFor !== same || Date.now() - state.totalsAt >= totalsEvery) {
    state.totals = await get("totals", rest, signal);
    state.totalsFor = same;
    state.totalsAt = Date.now();
  }
  return state.totals;
}

// queryOf is what the address asks for, as parameters of the interface.
function queryOf(params) {
  const query = {};
  for (const name of filters) if (params.has(name)) query[name] = name === "status" ? params.getAll(name) : params.get(name);
  return query;
}

// names are what the fields offer, read once for each view of the list.
async function namesFor(state, signal) {
  state.names ??= Promise.all([get("upstreams", {}, signal), get("replicas", {}, signal)]).then(([u, r]) => ({
    upstreams: u.upstreams.map((one) => one.name), replicas: r.replicas.map((one) => one.name),
    tools: [...new Set(u.upstreams.flatMap((one) => one.tools.map((t) => t.tool)))],
  })).catch(() => ({ upstreams: [], replicas: [], tools: [] }));
  return state.names;
}

let chosen = new Set(); // ids of tasks, for as long as the filters stay
let chosenFor = "";
let before = []; // the cursors of the pages before this one

export async function load({ params, signal, state }) {
  const query = queryOf(params), same = JSON.stringify(query);
  if (same !== chosenFor) {
    chosen = new Set();
    chosenFor = same;
  }
  const cursor = params.get("cursor") ?? "";
  if (!cursor) before = [];
  const names = namesFor(state, signal), totals = totalsFor(query, state, signal);
  let page = await get("tasks", { ...query, limit: pageSize, cursor }, signal);
  const tasks = page.tasks;
  for (let n = 1; n < mostTries && tasks.length < pageSize && page.next; n++) {
    page = await get("tasks", { ...query, limit: pageSize - tasks.length, cursor: page.next }, signal);
    tasks.push(...page.tasks);
  }
  return { tasks, next: page.next, names: await names, totals: await totals, date: page.date };
}

export function render(data, ctx) {
  const { params, redraw } = ctx;
  const unknown = isUnknown(params);
  const filtered = filters.some((name) => name !== "order" && params.get(name));
  const stoppable = !unknown && filtered && (!params.has("status") || params.getAll("status").some((s) => open.includes(s)));
  return [
    h("div", { class: "head" },
      h("h1", null, title(params)),
      unknown && h("p", { class: "muted" }, "A replica died, or the server went away, while a call was under way: the server may have done the work."),
      h("span", { class: "end" }, stoppable && h("button", { class: "danger", onclick: () => cancelAll(ctx) }, "Cancel all that match…"))),
    h("section", { class: "panel", "aria-label": "Tasks" },
      h("div", { class: "chips", role: "group", "aria-label": "Status" }, chips.map(([name, statuses]) => chip(name, statuses, data.totals, ctx))),
      filterBar(data.names, ctx),
      chosen.size > 0 && bulk(ctx),
      data.tasks.length > 0 ? list(data.tasks, redraw) : h("p", { class: "empty" },
        data.next ? "None of the tasks that were looked at match so far." : filtered ? "No task matches." : "There are no tasks yet: a call becomes one after its grace."),
      pages(data, ctx)),
  ];
}

// changed is the parameters with some of them set anew, from the first page on.
function changed(params, set) {
  const next = new URLSearchParams(params);
  next.delete("cursor");
  for (const [name, value] of Object.entries(set)) {
    next.delete(name);
    for (const one of [value].flat()) if (one) next.append(name, one);
  }
  return next;
}

// chip sets a filter; beside it stands how many tasks it lets through.
function chip(name, statuses, totals, { params, setParams }) {
  const ended = statuses.length === 0 || statuses.some((s) => !open.includes(s));
  const n = Object.entries(totals.counts).reduce((sum, [status, one]) => sum + (statuses.length === 0 || statuses.includes(status) ? one : 0), 0);
  const atLeast = totals.more && ended;
  return h("button", { "aria-pressed": String(params.getAll("status").join() === statuses.join()), onclick: () => setParams(changed(params, { status: statuses })) },
    name, " ", h("span", { class: "total", title: atLeast ? "At least: only the newest tasks that have ended are counted" : false }, `${count(n)}${atLeast ? "+" : ""}`));
}

const ages = [["", "Any age"], ["older_than=1m", "Older than 1 min"], ["older_than=10m", "Older than 10 min"], ["older_than=1h", "Older than 1 h"],
  ["older_than=24h", "Older than 1 day"], ["newer_than=10m", "Of the last 10 min"], ["newer_than=1h", "Of the last hour"], ["newer_than=24h", "Of the last day"], ["ended_within=10m", "Ended in the last 10 min"], ["ended_within=1h", "Ended in the last hour"]];

function filterBar(names, ctx) {
  const { params, setParams } = ctx;
  const set = (name) => (e) => setParams(changed(params, { [name]: e.target.value.trim() }));
  const select = (label, name, values, all) => h("label", { class: "field" }, label,
    h("select", { onchange: set(name) }, h("option", { value: "" }, all),
      [...new Set([...values, params.get(name)])].filter(Boolean).map((v) => h("option", { value: v, selected: params.get(name) === v }, v))));
  const text = (label, name, placeholder, more) => h("label", { class: "field wide" }, label,
    h("input", { type: "search", value: params.get(name) ?? "", placeholder, spellcheck: "false", autocapitalize: "off", autocomplete: "off", onchange: set(name), ...more }));
  const given = ["older_than", "newer_than", "ended_within"].filter((name) => params.get(name)).map((name) => `${name}=${params.get(name)}`)[0] ?? "";
  const known = ages.some(([v]) => v === given) ? ages : [...ages, [given, given.replace("_", " ").replace("=", " ")]];
  return h("form", { class: "filter", role: "search", "aria-label": "Filter", onsubmit: (e) => e.preventDefault(), "data-key": `filter ${params}` },
    text("Id", "id", "Begins with"),
    text("Principal", "principal", "Anybody"),
    text("Tool", "tool", "Any tool", { list: "tools" }),
    h("datalist", { id: "tools" }, names.tools.map((t) => h("option", { value: t }))),
    select("Upstream", "upstream", names.upstreams, "All"),
    select("Replica", "replica", names.replicas, "All"),
    h("label", { class: "field" }, "Age", h("select", {
      onchange: (e) => {
        const [name, value] = e.target.value.split("=");
        setParams(changed(params, { older_than: "", newer_than: "", ended_within: "", ...(name && { [name]: value }) }));
      },
    }, known.map(([v, t]) => h("option", { value: v, selected: v === given }, t)))),
    h("label", { class: "field" }, "Order", h("select", { onchange: set("order") },
      h("option", { value: "" }, "Newest first"), h("option", { value: "oldest", selected: params.get("order") === "oldest" }, "Oldest first"))),
    filters.some((name) => params.get(name)) && h("button", { type: "button", class: "plain", onclick: () => setParams(new URLSearchParams()) }, "Clear"));
}

function list(tasks, redraw) {
  const can = tasks.filter(isOpen);
  const choose = (ids, on) => {
    for (const id of ids) on ? chosen.add(id) : chosen.delete(id);
    redraw();
  };
  for (const t of tasks) if (!isOpen(t)) chosen.delete(t.id);
  return table({
    label: "Tasks", rows: tasks, key: (t) => t.id, classOf: (t) => (chosen.has(t.id) ? "chosen" : null),
    columns: [
      {
        name: "Choose", class: "tight choice",
        head: h("input", { type: "checkbox", "aria-label": "Choose all tasks of this page that have not ended", disabled: can.length === 0,
          checked: can.length > 0 && can.every((t) => chosen.has(t.id)), onchange: (e) => choose(can.map((t) => t.id), e.target.checked) }),
        cell: (t) => h("input", { type: "checkbox", "aria-label": `Choose ${t.id}`, disabled: !isOpen(t), checked: chosen.has(t.id), onchange: (e) => choose([t.id], e.target.checked) }),
      },
      { name: "Task", class: "tight", cell: (t) => taskLink(t.id) },
      { name: "Tool", class: "tight beside", cell: (t) => [foreign(t.tool), h("span", { class: "muted" }, ` at ${t.upstream}`), pausedMark(t.upstream, t.tool), t.hidden && [" ", t.kept_until
        ? h("span", { class: "tag", title: "Its client gave up; the same call made again picks it up" }, "given up")
        : h("span", { class: "tag", title: "A stored call that is no task: its client waits for it" }, "call")]] },
      { name: "Principal", class: "tight", label: "For", cell: (t) => who(t.principal) },
      { name: "State", class: "tight", cell: statusOf },
      { name: "Message", class: "grow clip muted", hint: (t) => t.message, cell: (t) => t.message ?? "" },
      { name: "Made", class: "number tight", label: "Made", cell: (t) => time(t.created_at) },
      { name: "Took", class: "number tight", label: "Took", head: "Age / took", cell: tookOf },
      { name: "Replica", class: "tight muted", label: "On", cell: (t) => t.replica ?? "" },
    ],
  });
}

function bulk(ctx) {
  return h("div", { class: "bulk", role: "region", "aria-label": "Chosen tasks", "data-key": "bulk" },
    h("b", null, `${plural(chosen.size, "task")} chosen`),
    h("button", { class: "danger", onclick: () => ask(ctx, [...chosen]) }, "Cancel them…"),
    h("button", { class: "plain", onclick: () => { chosen.clear(); ctx.redraw(); } }, "Choose none"));
}

function pages(data, { params, setParams }) {
  const cursor = params.get("cursor") ?? "";
  const first = data.tasks[0], last = data.tasks.at(-1);
  const go = (to) => {
    const next = changed(params, {});
    if (to) next.set("cursor", to);
    setParams(next);
  };
  return h("div", { class: "foot" },
    first && h("span", null, `${plural(data.tasks.length, "task")}, made `, time(first.created_at), first !== last && [" to ", time(last.created_at)]),
    h("span", { class: "end" },
      cursor && h("button", { onclick: () => go(before.pop() ?? "") }, before.length > 0 ? "Previous page" : "First page"),
      (data.next || first) && h("button", { disabled: !data.next, onclick: () => { before.push(cursor); go(data.next); } }, data.tasks.length ? "Next page" : "Look further")));
}

// cancelEach cancels tasks, some at a time.
async function cancelEach(ids, progress) {
  const end = { done: 0, ended: 0, failed: [] };
  const rest = [...ids];
  let n = 0;
  await Promise.all(Array.from({ length: mostAtOnce }, async () => {
    for (let id = rest.shift(); id; id = rest.shift()) {
      try {
        await cancel(id);
        end.done++;
      } catch (e) {
        if (e.status === 409 || e.status === 404) end.ended++;
        else end.failed.push(e.message);
      }
      progress(++n, ids.length);
    }
  }));
  return end;
}

function ask(ctx, ids, body) {
  confirm({
    title: `Cancel ${plural(ids.length, "task")}?`,
    body: body ?? h("p", null, "Their clients see them as cancelled, and the calls at the servers are cancelled, too."),
    action: `Cancel ${plural(ids.length, "task")}`,
    run: async (progress) => {
      progress(0, ids.length);
      const end = await cancelEach(ids, progress);
      chosen.clear();
      ctx.reload();
      return said(end);
    },
  });
}

// cancelAll looks for all tasks that the filters let through and that have not ended, and asks.
async function cancelAll(ctx) {
  const query = queryOf(ctx.params);
  query.status = (query.status ?? open).filter((s) => open.includes(s));
  const ids = [], tools = new Map(), owners = new Set();
  let next = "";
  do {
    const page = await get("tasks", { ...query, limit: 500, cursor: next }, ctx.signal);
    for (const t of page.tasks) {
      ids.push(t.id);
      tools.set(t.tool, (tools.get(t.tool) ?? 0) + 1);
      owners.add(t.principal || "anonymous");
    }
    next = page.next;
  } while (next && ids.length < mostCancelled);
  if (ids.length === 0) return confirm({ title: "Nothing to cancel", body: h("p", null, "All tasks that match have ended.") });
  const most = [...tools].sort((a, b) => b[1] - a[1]).slice(0, 4).map(([tool, n]) => `${n} of ${tool}`);
  ask(ctx, ids, [
    h("p", null, `${most.join(", ")}${tools.size > 4 ? ", and others" : ""}; for ${[...owners].slice(0, 4).join(", ")}${owners.size > 4 ? ` and ${owners.size - 4} others` : ""}.`),
    next && h("p", null, "There are more that match: they stay."),
    h("p", { class: "muted" }, "Their clients see them as cancelled, and the calls at the servers are cancelled, too."),
  ]);
}
