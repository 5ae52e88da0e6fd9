// The client of the TypeScript SDK 1.x with its tasks of 2025-11-25: a call is
// followed to its end, one that fails and one that is cancelled too.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { CallToolResultSchema, TaskStatusNotificationSchema } from "@modelcontextprotocol/sdk/types.js";

const { good, bad, endless } = JSON.parse(process.env.CALL);
const client = new Client({ name: "ts1tasks", version: "1" });
const told = [];
client.setNotificationHandler(TaskStatusNotificationSchema, ({ params }) => told.push(`${params.taskId} ${params.status}`));
const transport = new StreamableHTTPClientTransport(new URL(process.env.URL));
await client.connect(transport);
const tasks = client.experimental.tasks;
const support = Object.fromEntries((await client.listTools()).tools.map((t) => [t.name, t.execution?.taskSupport ?? ""]));

// refusal is the code of the error that a request is answered with.
const refusal = async (request) => {
  try {
    await request;
  } catch (error) {
    return error.code;
  }
  return 0;
};

// follow calls a tool and notes what becomes of the call. The first status is the
// occasion to do something with the task.
async function follow(call, meanwhile = async () => {}) {
  const seen = { statuses: [] };
  for await (const m of tasks.callToolStream(call, CallToolResultSchema, { task: { ttl: 60_000 } })) {
    if (m.type === "taskCreated") {
      seen.created = m.task;
      await meanwhile(m.task);
    } else if (m.type === "taskStatus") {
      seen.statuses.push(m.task.status);
    } else if (m.type === "result") {
      seen.result = m.result;
    } else {
      seen.error = m.error.message;
    }
  }
  seen.statuses = seen.statuses.filter((s, i, all) => s !== all[i - 1]);
  seen.task = await tasks.getTask(seen.created.taskId);
  return seen;
}

const completed = await follow(good);
completed.again = await tasks.getTaskResult(completed.created.taskId, CallToolResultSchema);
const failed = await follow(bad);
failed.again = await tasks.getTaskResult(failed.created.taskId, CallToolResultSchema);
let answer;
const cancelled = await follow(endless, async (task) => {
  answer = await tasks.cancelTask(task.taskId);
});
cancelled.answer = answer.status;
cancelled.again = await refusal(tasks.cancelTask(cancelled.created.taskId));
const waited = await refusal(tasks.getTaskResult(cancelled.created.taskId, CallToolResultSchema));
const unknown = await refusal(tasks.getTask("00000000-0000-4000-8000-000000000000"));

const listed = [];
for (let cursor; ; ) {
  const page = await tasks.listTasks(cursor);
  listed.push(...page.tasks.map((t) => t.taskId));
  cursor = page.nextCursor;
  if (cursor === undefined) break;
}

// The notifications come on a stream of their own.
const ends = [completed, failed, cancelled].map((s) => `${s.created.taskId} ${s.task.status}`);
for (let i = 0; i < 200 && !ends.every((e) => told.includes(e)); i++) {
  await new Promise((resolve) => setTimeout(resolve, 50));
}
const unheard = ends.filter((e) => !told.includes(e));
console.log(JSON.stringify({ support, completed, failed, cancelled, waited, unknown, listed, unheard }));
await transport.terminateSession();
await client.close();
