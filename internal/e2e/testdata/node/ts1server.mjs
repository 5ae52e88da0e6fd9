// A server of the TypeScript SDK 1.x with the tools of TestTable: over stdio, or at PORT over
// Streamable HTTP and HTTP+SSE. With TASKS it has tasks of 2025-11-25 of its own.
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { InMemoryTaskMessageQueue, InMemoryTaskStore } from "@modelcontextprotocol/sdk/experimental/tasks/stores/in-memory.js";
import { Server } from "@modelcontextprotocol/sdk/server/index.js";
import { SSEServerTransport } from "@modelcontextprotocol/sdk/server/sse.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import { CallToolRequestSchema, ElicitResultSchema, ListToolsRequestSchema, McpError } from "@modelcontextprotocol/sdk/types.js";
import { question, text, tools as common } from "./tabletools.mjs";

// Store tells a task's tool that it was cancelled.
const cancelled = new Map();
class Store extends InMemoryTaskStore {
  async updateTaskStatus(id, status, ...rest) {
    await super.updateTaskStatus(id, status, ...rest);
    if (status === "cancelled") cancelled.get(id)?.abort();
  }
}
const taskStore = new Store();
const taskMessageQueue = new InMemoryTaskMessageQueue();

// support is what the server says of a tool when it has tasks.
const support = process.env.TASKS ? { slow: "required", hang: "optional" } : {};

const tools = {
  ...common(McpError),
  ask: async (_, { extra }) => {
    const answer = await extra.sendRequest({ method: "elicitation/create", params: question }, ElicitResultSchema);
    return text("hello " + answer.content?.name);
  },
};

function server() {
  const s = new Server(
    { name: "ts1server", version: "1" },
    {
      capabilities: { tools: {}, ...(process.env.TASKS && { tasks: { list: {}, cancel: {}, requests: { tools: { call: {} } } } }) },
      ...(process.env.TASKS && { taskStore, taskMessageQueue }),
    },
  );
  s.setRequestHandler(ListToolsRequestSchema, () => ({
    tools: Object.keys(tools).map((name) => ({
      name,
      inputSchema: { type: "object" },
      ...(support[name] && { execution: { taskSupport: support[name] } }),
    })),
  }));
  s.setRequestHandler(CallToolRequestSchema, async ({ params }, extra) => {
    const { name, arguments: args = {} } = params;
    const run = (signal) => tools[name](args, { extra, progressToken: extra._meta?.progressToken, notify: extra.sendNotification, signal });
    if (!params.task && support[name] === "required") throw new McpError(-32601, name + " requires task augmentation");
    if (!params.task || !support[name]) return run(extra.signal);
    const task = await extra.taskStore.createTask({ ttl: params.task.ttl ?? 60_000, pollInterval: 100 });
    const stop = new AbortController();
    cancelled.set(task.taskId, stop);
    run(stop.signal)
      .then((result) => extra.taskStore.storeTaskResult(task.taskId, "completed", result))
      .catch(() => {}); // it was cancelled
    return { task };
  });
  return s;
}

const sessions = {};
async function handle(req, res) {
  const url = new URL(req.url, "http://localhost");
  if (url.pathname === "/sse" && req.method === "GET") {
    const transport = new SSEServerTransport("/message", res);
    sessions[transport.sessionId] = transport;
    await server().connect(transport);
    return;
  }
  if (url.pathname === "/sse") {
    res.writeHead(405).end();
    return;
  }
  if (url.pathname === "/message") {
    await sessions[url.searchParams.get("sessionId")].handlePostMessage(req, res);
    return;
  }
  let transport = sessions[req.headers["mcp-session-id"]];
  if (!transport && req.headers["mcp-session-id"]) {
    res.writeHead(404).end();
    return;
  }
  if (!transport) {
    transport = new StreamableHTTPServerTransport({
      sessionIdGenerator: randomUUID,
      onsessioninitialized: (id) => { sessions[id] = transport; },
    });
    await server().connect(transport);
  }
  await transport.handleRequest(req, res);
}

if (process.env.PORT) {
  createServer((req, res) => void handle(req, res).catch(() => res.writeHead(500).end())).listen(Number(process.env.PORT), "127.0.0.1");
} else {
  const s = server();
  s.onclose = () => process.exit(0);
  process.stdin.on("end", () => process.exit(0));
  await s.connect(new StdioServerTransport());
}
