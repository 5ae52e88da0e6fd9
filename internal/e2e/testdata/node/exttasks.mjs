// The TypeScript SDK 2.x with the ext-tasks package on top, which takes a task for
// an answer and follows it to its end.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { createTaskSessionFromClient, resultFromTaskOutcome } from "@modelcontextprotocol/ext-tasks/client";

const call = JSON.parse(process.env.CALL);
const url = new URL(process.env.URL);
const framing = {
  protocolVersion: "2026-07-28",
  clientInfo: { name: "exttasks", version: "1" },
  clientCapabilities: { extensions: { "io.modelcontextprotocol/tasks": {} } },
};

// patient is a fetch that waits for a server that does not listen.
async function patient(url, request) {
  for (;;) {
    try {
      return await fetch(url, request);
    } catch (error) {
      if (error.cause?.code !== "ECONNREFUSED") throw error;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }
}

// rawDispatch sends what the SDK's own codec would refuse.
const methods = [];
let lastId = 1000;
async function rawDispatch(request, options) {
  methods.push(request.method);
  const name = request.params?.name ?? request.params?.taskId;
  const response = await patient(url, {
    method: "POST",
    signal: options?.signal,
    headers: {
      "Content-Type": "application/json",
      Accept: "application/json, text/event-stream",
      "MCP-Protocol-Version": framing.protocolVersion,
      "Mcp-Method": request.method,
      ...(name === undefined ? {} : { "Mcp-Name": name }),
      ...options?.context?.headers,
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

const client = new Client(framing.clientInfo, {
  capabilities: framing.clientCapabilities,
  versionNegotiation: { mode: "auto" },
});
await client.connect(new StreamableHTTPClientTransport(url));
const session = createTaskSessionFromClient(client, { endpointId: "e2e", rawDispatch, v2RequestFraming: framing });
const execution = await session.callTool(call.name, call.arguments);
const { outcome } = await execution.settle();
const answer = { version: client.getNegotiatedProtocolVersion(), methods };
try {
  answer.result = resultFromTaskOutcome(outcome);
} catch (error) {
  answer.error = String(error.message);
}
console.log(JSON.stringify(answer));
await session.close();
await client.close();
