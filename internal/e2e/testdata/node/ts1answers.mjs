// The client of the TypeScript SDK 1.x with an answer to everything a server may ask.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { CreateMessageRequestSchema, ElicitRequestSchema, ListRootsRequestSchema } from "@modelcontextprotocol/sdk/types.js";

const capabilities = { elicitation: {}, sampling: {}, roots: {} };
const client = new Client({ name: "ts1answers", version: "1" }, { capabilities });
const asked = [];
const answer = (schema, result) => client.setRequestHandler(schema, ({ method }) => {
  asked.push(method);
  return result;
});
answer(ElicitRequestSchema, { action: "accept", content: { name: "Ada" } });
answer(CreateMessageRequestSchema, { role: "assistant", model: "m", content: { type: "text", text: "hm" } });
answer(ListRootsRequestSchema, { roots: [{ uri: "file:///r" }] });
const transport = new StreamableHTTPClientTransport(new URL(process.env.URL));
await client.connect(transport);
const result = await client.callTool(JSON.parse(process.env.CALL));
console.log(JSON.stringify({ methods: asked.sort(), result }));
await transport.terminateSession();
await client.close();
