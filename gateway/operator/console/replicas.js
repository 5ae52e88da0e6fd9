// The replicas of the deployment.

import { h, age, time, count } from "./dom.js";
import { get } from "./api.js";
import { table, listOf, ago, hasDied } from "./parts.js";

export const title = () => "Replicas";

export const load = ({ signal }) => get("replicas", {}, signal);

export function render({ replicas }) {
  const configs = new Set(replicas.filter((r) => r.alive && r.config).map((r) => r.config));
  const alive = replicas.filter((r) => r.alive).length, died = replicas.filter(hasDied).length;
  return [
    h("div", { class: "head" }, h("h1", null, "Replicas"), h("p", { class: "muted" }, `${alive} alive${died > 0 ? `, ${died} gone` : ""}`),
      configs.size > 1 && h("span", { class: "tag" }, "different configurations")),
    h("section", { class: "panel", "aria-label": "Replicas" }, replicas.length === 0 ? h("p", { class: "empty" }, "No replica has said anything yet.") : table({
      label: "Replicas", rows: replicas, key: (r) => r.name,
      columns: [
        { name: "Replica", class: "tight mono", cell: (r) => r.name },
        { name: "State", class: "tight", cell: (r) => stateOf(r) },
        { name: "Tasks", class: "number tight", label: "Tasks", cell: (r) => (r.tasks > 0 ? h("a", { href: listOf({ replica: r.name }) }, count(r.tasks)) : 0) },
        { name: "Sessions", class: "number tight", label: "Sessions", cell: (r) => (r.alive && r.sessions > 0 ? count(r.sessions) : 0) },
        { name: "Streams", class: "number tight", label: "Streams", cell: (r) => (r.alive && r.streams > 0 ? count(r.streams) : 0) },
        { name: "Up", class: "number tight", label: "Up", cell: (r) => (r.alive && r.since ? time(r.since, age(r.since)) : "–") },
        { name: "Address", class: "", label: "At", cell: (r) => [r.address ?? "", r.host && h("span", { class: "muted" }, ` on ${r.host}`)] },
        { name: "Version", class: "", label: "Version", cell: (r) => r.version ?? "" },
        { name: "Configuration", class: "tight mono", label: "Configuration", cell: (r) => r.config ?? "" },
      ],
    })),
    died > 0 && h("p", { class: "muted" }, "The others take over the calls of a replica that is gone. A call that the server may have done and that may not be sent again ends with an ",
      h("a", { href: listOf({ status: "unknown" }) }, "unknown outcome"), "; the timeline of a task says who took it over."),
  ];
}

function stateOf(r) {
  if (!r.alive) return [h("span", { class: `status ${hasDied(r) ? "gone" : ""}` }, hasDied(r) ? "Gone" : "Stopped"), h("span", { class: "muted" }, " ", ago(r.seen_at))];
  return h("span", { class: `status ${r.draining ? "draining" : "alive"}` }, r.draining ? "Draining" : "Alive");
}
