// A client of the TypeScript SDK 2.x whose program makes a call again, with the limits of the SDK, until it is answered.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

const client = new Client({ name: "ts2", version: "1" }, { versionNegotiation: { mode: process.env.MODE } });
await client.connect(new StreamableHTTPClientTransport(new URL(process.env.URL)));
const failures = [];
let result = null;
for (let i = 0; i < 4 && result === null; i++) {
  try {
    result = await client.callTool(JSON.parse(process.env.CALL));
  } catch (e) {
    failures.push(String(e));
  }
}
console.log(JSON.stringify({ failures, result }));
await client.close();
