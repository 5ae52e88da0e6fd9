// A client of a TypeScript SDK whose program makes a call again, with the limits of the SDK, until it is answered. MODE is
// the negotiation of 2.x; without it, it is 1.x.
const mode = process.env.MODE;
const { Client } = await import(mode ? "@modelcontextprotocol/client" : "@modelcontextprotocol/sdk/client/index.js");
const { StreamableHTTPClientTransport } = await import(mode ? "@modelcontextprotocol/client" : "@modelcontextprotocol/sdk/client/streamableHttp.js");

const client = new Client({ name: "ts", version: "1" }, mode ? { versionNegotiation: { mode } } : undefined);
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
