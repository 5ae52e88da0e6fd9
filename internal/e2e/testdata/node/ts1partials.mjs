// The client of the TypeScript SDK 1.x, which opts in to partial results (SEP-2679), if
// PARTIAL says so: a notification that the SDK itself does not know.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { CallToolResultSchema, TaskStatusNotificationSchema } from "@modelcontextprotocol/sdk/types.js";
import { z } from "zod";

const partialSchema = z.object({
  method: z.literal("notifications/tasks/partial"),
  params: z.looseObject({ taskId: z.string(), seq: z.number(), content: z.array(z.looseObject({ text: z.string() })) }),
});

const capabilities = process.env.PARTIAL ? { tasks: { streaming: { partial: {} } } } : {};
const client = new Client({ name: "ts1partials", version: "1" }, { capabilities });
const seen = { partials: [], others: [], streamPartial: false };
let ended;
const over = new Promise((resolve) => (ended = resolve));
client.setNotificationHandler(partialSchema, ({ params }) => {
  seen.partials.push({ task: params.taskId, seq: params.seq, text: params.content.map((block) => block.text) });
});
client.setNotificationHandler(TaskStatusNotificationSchema, ({ params }) => {
  if (params.status === "completed") ended();
});
client.fallbackNotificationHandler = async ({ method }) => seen.others.push(method);
const transport = new StreamableHTTPClientTransport(new URL(process.env.URL));
await client.connect(transport);
// The SDK's own schema of a tool drops what it does not know.
const list = z.looseObject({ tools: z.array(z.looseObject({ name: z.string() })) });
const { tools } = await client.request({ method: "tools/list" }, list);
seen.streamPartial = tools.find((t) => t.name === "steps").execution?.streamPartial ?? false;

const call = { name: "steps", arguments: { n: 5 } };
for await (const m of client.experimental.tasks.callToolStream(call, CallToolResultSchema, { task: { ttl: 60_000 } })) {
  if (m.type === "taskCreated") seen.task = m.task.taskId;
  if (m.type === "error") throw m.error;
  if (m.type === "result") seen.result = m.result;
}
await over; // it comes on the stream of the partial results, after them
console.log(JSON.stringify(seen));
await transport.terminateSession();
await client.close();
