// A server of the TypeScript SDK 2.x with the tools of TestTable: over stdio, or at PORT. It
// speaks 2026-07-28 alone.
import { createServer } from "node:http";
import { toNodeHandler } from "@modelcontextprotocol/node";
import { acceptedContent, createMcpHandler, inputRequired, ProtocolError, Server } from "@modelcontextprotocol/server";
import { serveStdio } from "@modelcontextprotocol/server/stdio";
import { question, text, tools as common } from "./tabletools.mjs";

const tools = {
  ...common(ProtocolError),
  ask: async (_, { mcpReq }) => {
    const answer = acceptedContent(mcpReq.inputResponses, "who");
    if (answer) return text("hello " + answer.name);
    return inputRequired({ inputRequests: { who: inputRequired.elicit(question) } });
  },
};

function server() {
  const s = new Server({ name: "ts2server", version: "1" }, { capabilities: { tools: {} } });
  s.setRequestHandler("tools/list", () => ({ tools: Object.keys(tools).map((name) => ({ name, inputSchema: { type: "object" } })) }));
  s.setRequestHandler("tools/call", ({ params }, { mcpReq }) => {
    const client = { mcpReq, progressToken: mcpReq._meta?.progressToken, notify: (n) => mcpReq.notify(n), signal: mcpReq.signal };
    return tools[params.name](params.arguments ?? {}, client);
  });
  return s;
}

if (process.env.PORT) {
  createServer(toNodeHandler(createMcpHandler(server, { legacy: "reject" }))).listen(Number(process.env.PORT), "127.0.0.1");
} else {
  serveStdio(server, { legacy: "reject" });
  process.stdin.on("end", () => process.exit(0));
}
