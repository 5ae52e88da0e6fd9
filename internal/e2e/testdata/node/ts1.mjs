// The client of the TypeScript SDK 1.x, which speaks the 2025 versions and
// follows a call's progress.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const call = JSON.parse(process.env.CALL);
const client = new Client({ name: "ts1", version: "1" });
const transport = new StreamableHTTPClientTransport(new URL(process.env.URL));
await client.connect(transport);
const tools = (await client.listTools()).tools.map((tool) => tool.name);
const progress = [];
const result = await client.callTool(call, undefined, { onprogress: (p) => progress.push(p.progress) });
console.log(JSON.stringify({ version: transport.protocolVersion, tools, progress, result }));
await transport.terminateSession();
await client.close();
