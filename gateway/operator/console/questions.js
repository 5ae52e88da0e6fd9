// Who waits for whom: the questions of servers that no client has answered yet.

import { h, age } from "./dom.js";
import { get } from "./api.js";
import { table, taskLink, who, foreign, pausedMark } from "./parts.js";

export const title = () => "Questions";

export const load = ({ signal }) => get("questions", {}, signal);

const asks = {
  "elicitation/create": "the user", "sampling/createMessage": "the model", "roots/list": "the roots",
};

export function render(data) {
  return [
    h("div", { class: "head" }, h("h1", null, "Questions"),
      h("p", { class: "muted" }, "Servers that wait for an answer of somebody's client, the longest wait first.")),
    h("section", { class: "panel", "aria-label": "Open questions" },
      data.questions.length === 0 ? h("p", { class: "empty" }, "No question is open.") : table({
        label: "Open questions", rows: data.questions, key: (q) => `${q.task} ${q.key}`,
        columns: [
          { name: "Waits", class: "number tight", label: "Waits", cell: (q) => age(q.since) },
          { name: "For", class: "", label: "For", cell: (q) => who(q.principal) },
          { name: "Tool", class: "beside", cell: (q) => [foreign(q.tool), h("span", { class: "muted" }, ` at ${q.upstream}`), pausedMark(q.upstream, q.tool)] },
          { name: "Asks for", class: "", cell: (q) => [asks[q.method] ?? q.method, h("span", { class: "muted" }, ` ${q.method}`)] },
          { name: "Question", class: "grow", cell: (q) => said(q.params) },
          { name: "Task", class: "tight", cell: (q) => taskLink(q.task) },
        ].filter((c) => c.name !== "Question" || data.questions.some((q) => q.params)),
      }),
      data.more && h("p", { class: "foot" }, "There are more.")),
  ];
}

// said is the text of a question, as far as it has one.
const said = (params) => params?.message ?? params?.url ?? (params ? JSON.stringify(params) : "");
