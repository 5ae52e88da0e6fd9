// A server of the TypeScript SDK 1.x whose tools ask without naming their request: on
// the GET stream of the session. With JSON set it answers calls in JSON, and has no
// other stream to ask on.
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";

const form = { message: "who?", requestedSchema: { type: "object", properties: { name: { type: "string" } } } };
const text = (text) => ({ content: [{ type: "text", text }] });

function asker() {
  const mcp = new McpServer({ name: "ts1asks", version: "1" });
  mcp.registerTool("ask", {}, async () => text(`hello ${(await mcp.server.elicitInput(form)).content.name}`));
  mcp.registerTool("all", {}, async () => {
    const messages = [{ role: "user", content: { type: "text", text: "?" } }];
    const [who, said, { roots }] = await Promise.all([
      mcp.server.elicitInput(form),
      mcp.server.createMessage({ messages, maxTokens: 5 }),
      mcp.server.listRoots(),
    ]);
    return text(`${who.content.name}, ${said.content.text}, ${roots[0].uri}`);
  });
  return mcp;
}

const sessions = {};
createServer(async (req, res) => {
  let transport = sessions[req.headers["mcp-session-id"]];
  if (!transport && req.headers["mcp-session-id"]) {
    res.writeHead(404).end();
    return;
  }
  if (!transport) {
    transport = new StreamableHTTPServerTransport({
      sessionIdGenerator: randomUUID,
      enableJsonResponse: Boolean(process.env.JSON_ONLY),
      onsessioninitialized: (id) => { sessions[id] = transport; },
    });
    await asker().connect(transport);
  }
  await transport.handleRequest(req, res);
}).listen(Number(process.env.PORT), "127.0.0.1");
