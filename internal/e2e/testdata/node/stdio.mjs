// A client over stdio of the TypeScript SDK that PEER names. It starts COMMAND with ARGS.
const peer = process.env.PEER;
const one = peer === "ts1";
const { Client } = await import(one ? "@modelcontextprotocol/sdk/client/index.js" : "@modelcontextprotocol/client");
const { StdioClientTransport } = await import(one ? "@modelcontextprotocol/sdk/client/stdio.js" : "@modelcontextprotocol/client/stdio");
const types = one ? await import("@modelcontextprotocol/sdk/types.js") : {};

const mode = { ts2legacy: "legacy", ts2auto: "auto" }[peer];
const client = new Client({ name: peer, version: "1" }, {
  capabilities: { elicitation: { form: {} } },
  ...(mode && { versionNegotiation: { mode } }),
});
client.setRequestHandler(one ? types.ElicitRequestSchema : "elicitation/create", () => ({ action: "accept", content: { name: "Ada" } }));
const transport = new StdioClientTransport({ command: process.env.COMMAND, args: JSON.parse(process.env.ARGS), env: process.env });
let version;
transport.setProtocolVersion = (v) => (version = v);
await client.connect(transport);

const call = (name, args = {}, options) =>
  one ? client.callTool({ name, arguments: args }, undefined, options) : client.callTool({ name, arguments: args }, options);
const text = (result) => result.content[0].text;

const tools = (await client.listTools()).tools.map((tool) => tool.name);
const progress = [];
const texts = {
  echo: text(await call("echo", { text: "hällo\nthere" })),
  steps: text(await call("steps", {}, { onprogress: (p) => progress.push(p.progress) })),
  ask: text(await call("ask")),
};
const large = text(await call("large")).length;
const failed = (await call("fail")).isError === true;
const leave = new AbortController();
const long = call("hang", { key: "left" }, { signal: leave.signal });
setTimeout(() => leave.abort(), 300);
const cancelled = await long.then(() => false, () => true);
const begin = Date.now();
await client.close();
console.log(JSON.stringify({
  version: version ?? client.getNegotiatedProtocolVersion(), tools, progress, texts, large, failed, cancelled, closed: Date.now() - begin,
}));
