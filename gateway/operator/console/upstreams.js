// The servers behind the gateway, as all replicas see them.

import { h, count } from "./dom.js";
import { get } from "./api.js";
import { table, listOf, open } from "./parts.js";

export const title = () => "Upstreams";

export const load = ({ signal }) => get("upstreams", {}, signal);

export function render({ upstreams }) {
  return [
    h("div", { class: "head" }, h("h1", null, "Upstreams")),
    h("div", { class: "cards" }, upstreams.map(card)),
    upstreams.length === 0 && h("section", { class: "panel" }, h("p", { class: "empty" }, "No upstream is configured.")),
  ];
}

function card(u) {
  const state = u.removed ? h("span", { class: "status" }, "Removed") : u.reachable ? h("span", { class: "status alive" }, "Reachable")
    : h("span", { class: "status gone" }, u.replicas.some((r) => r.reachable) ? "Not reached by all" : "Not reachable");
  const row = (name, value) => h("div", null, h("dt", null, name), h("dd", null, value));
  const away = u.removed ? [] : u.replicas.filter((r) => !r.reachable);
  return h("section", { class: "panel card", "aria-label": u.name, "data-key": u.name },
    h("header", null, h("h2", null, u.name), h("span", { class: "tags" }, u.era && h("span", { class: "tag" }, u.era), u.transport && h("span", { class: "tag" }, u.transport)), h("span", { class: "end" }, state)),
    h("dl", { class: "facts" },
      row("Calls in flight", count(u.calls)), row("Queued", count(u.queued)),
      row("Tasks", u.tasks > 0 ? h("a", { href: listOf({ upstream: u.name, status: open }) }, count(u.tasks)) : "0")),
    away.length > 0 && h("div", { class: "pad" }, away.map((r) => h("p", { class: "notice bad", "data-key": r.replica }, h("b", null, r.replica), r.error || "does not reach it"))),
    policies(u.policies),
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

function policies(list) {
  return table({
    label: "Policies", rows: list, key: (p) => p.tools, cards: false,
    columns: [
      { name: "Tools", class: "mono", cell: (p) => (p.tools === "*" ? "all others" : p.tools) },
      { name: "Tasks", class: "", cell: (p) => p.tasks },
      { name: "Grace", class: "number tight", cell: (p) => p.grace ?? "" },
      { name: "Kept", class: "number tight", cell: (p) => p.ttl ?? "" },
      { name: "Timeout", class: "number tight", cell: (p) => p.timeout ?? "" },
      { name: "At once", class: "number tight", cell: (p) => p.concurrency || "any" },
      { name: "If lost", class: "tight", cell: (p) => [p.recover, p.rerun && "rerun"].filter(Boolean).join(", ") },
    ],
  });
}
