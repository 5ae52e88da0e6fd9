// Clients that take tasks, as many as COUNT: each calls the tool once, and follows its task
// to the end as the package does it. PEER is the TypeScript SDK 1.x (sdk), or ext-tasks on
// the SDK 2.x in 2025-11-25 (legacy) or in 2026-07-28 (modern). It prints a line when a
// client has its task, and a line when that has ended.
const peer = process.env.PEER;
const one = peer === "sdk";
const { Client } = await import(one ? "@modelcontextprotocol/sdk/client/index.js" : "@modelcontextprotocol/client");
const { StreamableHTTPClientTransport } = await import(
  one ? "@modelcontextprotocol/sdk/client/streamableHttp.js" : "@modelcontextprotocol/client"
);
const { CallToolResultSchema } = one ? await import("@modelcontextprotocol/sdk/types.js") : {};
const { createTaskSessionFromClient, resultFromTaskOutcome } = await import("@modelcontextprotocol/ext-tasks/client");

const url = new URL(process.env.URL);
const calls = JSON.parse(process.env.CALLS);
const framing = {
  protocolVersion: "2026-07-28",
  clientInfo: { name: peer, version: "1" },
  clientCapabilities: { extensions: { "io.modelcontextprotocol/tasks": {} } },
};

// rawDispatch sends what the SDK's own codec would refuse.
let lastId = 1000;
async function rawDispatch(request, options) {
  const name = request.params?.name ?? request.params?.taskId;
  const response = await fetch(url, {
    method: "POST",
    signal: options?.signal,
    headers: {
      "Content-Type": "application/json",
      Accept: "application/json, text/event-stream",
      "MCP-Protocol-Version": framing.protocolVersion,
      "Mcp-Method": request.method,
      ...(name === undefined ? {} : { "Mcp-Name": name }),
    },
    body: JSON.stringify({ jsonrpc: "2.0", id: ++lastId, ...request }),
  });
  let text = await response.text();
  if (response.headers.get("content-type").startsWith("text/event-stream")) {
    text = text.split("\n").filter((line) => line.startsWith("data: ")).at(-1).slice(6);
  }
  const answer = JSON.parse(text);
  return answer.error ? { kind: "error", error: answer.error } : { kind: "result", result: answer.result };
}

const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

// follow makes one call, and returns its result.
async function follow(client, { name, arguments: args }) {
  if (!one) {
    const modern = peer === "modern" && { rawDispatch, v2RequestFraming: framing };
    const session = createTaskSessionFromClient(client, { endpointId: "trials", ...modern, onError: () => {} });
    const execution = await session.callTool(name, args, { task: { preference: "prefer" } });
    if (execution.handle) say({ task: execution.handle.taskId });
    return resultFromTaskOutcome((await execution.settle()).outcome);
  }
  let result;
  const options = { task: {} };
  for await (const m of client.experimental.tasks.callToolStream({ name, arguments: args }, CallToolResultSchema, options)) {
    if (m.type === "taskCreated") say({ task: m.task.taskId });
    if (m.type === "error") throw m.error;
    if (m.type === "result") result = m.result;
  }
  return result;
}

await Promise.all(
  calls.map(async (call) => {
    const mode = { versionNegotiation: { mode: peer === "modern" ? "auto" : "legacy" } };
    const client = new Client({ name: peer, version: "1" }, one ? {} : { capabilities: framing.clientCapabilities, ...mode });
    try {
      await client.connect(new StreamableHTTPClientTransport(url));
      const result = await follow(client, call);
      say({ end: result.content.map((c) => c.text).join("\n") });
    } catch (error) {
      const causes = [];
      for (let e = error; e; e = e.cause) causes.push(`${e}${e.code ? ` (${e.code})` : ""}${e.data ? ` ${JSON.stringify(e.data)}` : ""}`);
      say({ end: causes.join(", because of ") });
    }
  }),
);
process.exit(0);
