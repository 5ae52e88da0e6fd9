// The servers behind the gateway, as all replicas see them.

import { h, count } from "./dom.js";
import { get, pause, resume } from "./api.js";
import { table, listOf, open, ago, foreign, confirm, setPaused } from "./parts.js";

export const title = () => "Upstreams";

export async function load({ signal }) {
  const all = await get("upstreams", {}, signal);
  setPaused(all.upstreams);
  return all;
}

export function render({ upstreams }, ctx) {
  return [
    h("div", { class: "head" }, h("h1", null, "Upstreams")),
    h("div", { class: "cards" }, upstreams.map((u) => card(u, ctx))),
    upstreams.length === 0 && h("section", { class: "panel" }, h("p", { class: "empty" }, "No upstream is configured.")),
  ];
}

function card(u, ctx) {
  const state = u.removed ? h("span", { class: "status" }, "Removed") : u.reachable ? h("span", { class: "status alive" }, "Reachable")
    : h("span", { class: "status gone" }, u.replicas.some((r) => r.reachable) ? "Not reached by all" : "Not reachable");
  const row = (name, value) => h("div", null, h("dt", null, name), h("dd", null, value));
  const away = u.removed ? [] : u.replicas.filter((r) => !r.reachable);
  return h("section", { class: "panel card", "aria-label": u.name, "data-key": u.name },
    h("header", null, h("h2", { title: u.name }, u.name), h("span", { class: "tags" }, u.era && h("span", { class: "tag" }, u.era), u.transport && h("span", { class: "tag" }, u.transport)), h("span", { class: "end" }, state, pauseButton(u, "", ctx))),
    pausesOf(u, "").map((p) => h("div", { class: "pad" }, h("p", { class: "notice" }, h("b", null, "Paused"), h("span", null, "by ", foreign(p.operator || "an operator"), ", ", ago(p.since), ": new calls are refused as busy.")))),
    h("dl", { class: "facts" },
      row("Calls in flight", count(u.calls)), row("Queued", count(u.queued)),
      row("Tasks", u.tasks > 0 ? h("a", { href: listOf({ upstream: u.name, status: open }) }, count(u.tasks)) : "0")),
    away.length > 0 && h("div", { class: "pad" }, away.map((r) => h("p", { class: "notice bad", "data-key": r.replica }, h("b", null, r.replica), r.error || "does not reach it"))),
    policies(u.policies),
    tools(u, ctx),
    u.replicas.length > 1 && h("details", null, h("summary", null, "By replica"), table({
      label: `${u.name} by replica`, rows: u.replicas, key: (r) => r.replica, cards: false,
      columns: [
        { name: "Replica", class: "mono", cell: (r) => r.replica },
        { name: "Reachable", class: "tight", cell: (r) => (r.reachable ? "yes" : "no") },
        { name: "Calls", class: "number tight", cell: (r) => r.calls },
        { name: "Queued", class: "number tight", cell: (r) => r.queued },
        { name: "Tasks", class: "number tight", cell: (r) => r.tasks },
      ],
    })));
}

const pausesOf = (u, tool) => (u.paused ?? []).filter((p) => (p.tool ?? "") === tool);

// pauseButton pauses the calls of an upstream or of a tool, or has them go on.
function pauseButton(u, tool, ctx) {
  const what = tool ? `${tool} at ${u.name}` : u.name;
  const is = pausesOf(u, tool).length > 0;
  if (u.removed && !is) return null;
  return h("button", {
    "aria-label": `${is ? "Resume" : "Pause"} ${what}`,
    onclick: () => confirm({
      title: is ? `Resume ${tool || u.name}?` : `Pause ${tool || u.name}?`,
      body: h("p", null, is ? "New calls go to the server again, at every replica." : "New calls are refused as busy, at every replica, until somebody resumes them. What runs goes on."),
      action: is ? "Resume" : "Pause",
      run: async () => {
        await (is ? resume : pause)(u.name, tool);
        ctx.reload();
      },
    }),
  }, is ? "Resume…" : "Pause…");
}

// tools are those that run now, and those that are paused.
function tools(u, ctx) {
  const running = new Map(u.tools.map((t) => [t.tool, t]));
  const names = [...new Set([...running.keys(), ...(u.paused ?? []).map((p) => p.tool).filter(Boolean)])].sort();
  return names.length > 0 && table({
    label: `Tools of ${u.name}`, rows: names, key: (name) => name, cards: false,
    columns: [
      { name: "Tool", class: "grow clip", cell: (name) => foreign(name) },
      { name: "Tasks", class: "number tight", cell: (name) => { const t = running.get(name); return t ? t.running + t.input_required + t.queued : 0; } },
      { name: "Paused", class: "tight", cell: (name) => pausesOf(u, name).map((p) => ago(p.since)) },
      { name: "Change", class: "tight", cell: (name) => pauseButton(u, name, ctx) },
    ],
  });
}

function policies(list) {
  return table({
    label: "Policies", rows: list, key: (p) => p.tools, cards: false,
    columns: [
      { name: "Tools", class: "mono", cell: (p) => (p.tools === "*" ? "all others" : foreign(p.tools)) },
      { name: "Tasks", class: "", cell: (p) => p.tasks },
      { name: "Grace", class: "number tight", cell: (p) => p.grace ?? "" },
      { name: "Kept", class: "number tight", cell: (p) => p.ttl ?? "" },
      { name: "Timeout", class: "number tight", cell: (p) => p.timeout ?? "" },
      { name: "At once", class: "number tight", cell: (p) => p.concurrency || "any" },
      { name: "If lost", class: "tight", cell: (p) => [p.recover, p.rerun && "rerun"].filter(Boolean).join(", ") },
    ],
  });
}
