// A server of the TypeScript SDK 2.x with the tools of TestTable: over stdio, or at PORT. It
// speaks 2026-07-28 alone. What a tool that is cancelled sees it notes in the directory MARKS.
import { existsSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { toNodeHandler } from "@modelcontextprotocol/node";
import { acceptedContent, createMcpHandler, inputRequired, ProtocolError, Server } from "@modelcontextprotocol/server";
import { serveStdio } from "@modelcontextprotocol/server/stdio";

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const text = (text, more) => ({ content: [{ type: "text", text }], ...more });
const mark = (what, key) => writeFileSync(process.env.MARKS + "/" + what + "-" + key, "");

const tools = {
  echo: async ({ text: said }) => text(said),
  steps: async ({ key }, { mcpReq }) => {
    const progressToken = mcpReq._meta?.progressToken;
    for (let progress = 1; progress <= 3; progress++) {
      const params = { progressToken, progress, total: 3, message: "step " + progress };
      if (progressToken !== undefined) await mcpReq.notify({ method: "notifications/progress", params });
      await pause(250);
    }
    for (let i = 0; i < 100 && !existsSync(process.env.MARKS + "/noted-" + key); i++) await pause(50);
    return text("walked");
  },
  slow: async () => {
    await pause(800);
    return text("slept");
  },
  hang: ({ key }, { mcpReq }) => {
    mark("ran", key);
    return new Promise((resolve) =>
      mcpReq.signal.addEventListener("abort", () => {
        mark("gone", key);
        resolve(text("late"));
      }),
    );
  },
  ask: async (_, { mcpReq }) => {
    const answer = acceptedContent(mcpReq.inputResponses, "who");
    if (answer) return text("hello " + answer.name);
    const requestedSchema = { type: "object", properties: { name: { type: "string" } } };
    return inputRequired({ inputRequests: { who: inputRequired.elicit({ message: "who?", requestedSchema }) } });
  },
  fail: async () => text("failed on purpose", { isError: true }),
  broken: async () => {
    throw new ProtocolError(-32010, "broken on purpose");
  },
  large: async () => text("x".repeat(4 << 20)),
};

function server() {
  const s = new Server({ name: "ts2server", version: "1" }, { capabilities: { tools: {} } });
  s.setRequestHandler("tools/list", () => ({ tools: Object.keys(tools).map((name) => ({ name, inputSchema: { type: "object" } })) }));
  s.setRequestHandler("tools/call", ({ params }, ctx) => tools[params.name](params.arguments ?? {}, ctx));
  return s;
}

if (process.env.PORT) {
  createServer(toNodeHandler(createMcpHandler(server, { legacy: "reject" }))).listen(Number(process.env.PORT), "127.0.0.1");
} else {
  serveStdio(server, { legacy: "reject" });
  process.stdin.on("end", () => process.exit(0));
}
