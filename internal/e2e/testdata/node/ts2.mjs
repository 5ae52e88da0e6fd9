// The client of the TypeScript SDK 2.x, in the era that MODE names.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

const call = JSON.parse(process.env.CALL);
const client = new Client({ name: "ts2", version: "1" }, { versionNegotiation: { mode: process.env.MODE } });
await client.connect(new StreamableHTTPClientTransport(new URL(process.env.URL)));
const tools = (await client.listTools()).tools.map((tool) => tool.name);
const progress = [];
const result = await client.callTool(call, { onprogress: (p) => progress.push(p.progress) });
console.log(JSON.stringify({ version: client.getNegotiatedProtocolVersion(), tools, progress, result }));
await client.close();
