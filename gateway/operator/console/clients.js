// Who sends requests, and who holds what.

import { h, count } from "./dom.js";
import { get } from "./api.js";
import { table, foreign, listOf, open } from "./parts.js";

export const title = () => "Clients";

export const load = ({ signal }) => get("clients", {}, signal);

export function render(data) {
  return [
    h("div", { class: "head" }, h("h1", null, "Clients"),
      h("p", { class: "muted" }, "Who sends most, and what they hold: principals, and addresses where nobody has signed in.")),
    h("section", { class: "panel", "aria-label": "Clients" },
      data.clients.length === 0 ? h("p", { class: "empty" }, "Nobody has sent anything in the last hour.") : table({
        label: "Clients", rows: data.clients, key: (c) => `${c.principal ?? ""} ${c.address ?? ""}`,
        columns: [
          { name: "Client", class: "first", cell: nameOf },
          { name: "Last minute", label: "Last minute", class: "number tight", cell: (c) => (c.last_minute > 0 ? count(c.last_minute) : 0) },
          { name: "Last hour", label: "Last hour", class: "number tight", cell: (c) => (c.last_hour > 0 ? count(c.last_hour) : 0) },
          { name: "Mostly", label: "Mostly", class: "tight", hint: all, cell: (c) => sorted(c)[0]?.[0] ?? "" },
          { name: "Sessions", label: "Sessions", class: "number tight", cell: (c) => (c.sessions > 0 ? count(c.sessions) : 0) },
          { name: "Streams", label: "Streams", class: "number tight", cell: (c) => (c.streams > 0 ? count(c.streams) : 0) },
          { name: "Calls", label: "Calls", class: "number tight", cell: (c) => (c.calls > 0 ? count(c.calls) : 0) },
          { name: "Tasks", label: "Tasks", class: "number tight", cell: (c) => (c.tasks > 0 ? tasksOf(c) : 0) },
        ],
      }),
      data.others > 0 && h("p", { class: "foot" }, `Others, who are not told apart, have sent ${count(data.others)} in the last minute.`)),
  ];
}

const sorted = (c) => Object.entries(c.methods ?? {}).sort((a, b) => b[1] - a[1]);

// all are the methods of a client with their numbers.
const all = (c) => sorted(c).map(([method, n]) => `${method} ${count(n)}`).join("\n");

const nameOf = (c) => [
  c.principal ? foreign(c.principal) : c.address ? h("span", { class: "mono" }, c.address) : h("span", { class: "muted" }, "all others without an address"),
  (c.names ?? []).map((name) => h("span", { class: "muted" }, " ", foreign(name))),
];

const tasksOf = (c) => (c.principal ? h("a", { href: listOf({ principal: c.principal, status: open }) }, count(c.tasks)) : count(c.tasks));
