// A client of 2025-11-25 of the TypeScript SDK that SDK names: 1.32.2 or 2.4.0. It has several calls at once, and
// says what became of each.
const { Client, StreamableHTTPClientTransport } = process.env.SDK.startsWith("1.")
  ? { ...(await import("@modelcontextprotocol/sdk/client/index.js")), ...(await import("@modelcontextprotocol/sdk/client/streamableHttp.js")) }
  : await import("@modelcontextprotocol/client");

const client = new Client({ name: "cuts", version: "1" });
const transport = new StreamableHTTPClientTransport(new URL(process.env.URL));
await client.connect(transport);
const options = { timeout: 100_000 };
const answers = await Promise.all(
  JSON.parse(process.env.CALLS).map(async (call) => {
    try {
      const result = await (process.env.SDK.startsWith("1.") ? client.callTool(call, undefined, options) : client.callTool(call, options));
      return result.content[0].text;
    } catch (error) {
      return `${error}`;
    }
  }),
);
console.log(JSON.stringify({ answers }));
await client.close();
