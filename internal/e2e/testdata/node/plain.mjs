// A client of the TypeScript SDK that never heard of tasks. Of a call that takes long
// it is told in words that there is a task, and by which tool to read it; it reads it
// at another replica, as often as it takes. SDK says which generation, MODE the era.
const one = process.env.SDK === "1";
const { Client } = await import(one ? "@modelcontextprotocol/sdk/client/index.js" : "@modelcontextprotocol/client");
const { StreamableHTTPClientTransport } = await import(
  one ? "@modelcontextprotocol/sdk/client/streamableHttp.js" : "@modelcontextprotocol/client"
);

const connect = async (url) => {
  const client = new Client({ name: "plain", version: "1" }, one ? {} : { versionNegotiation: { mode: process.env.MODE } });
  await client.connect(new StreamableHTTPClientTransport(new URL(url)));
  return client;
};
const maker = await connect(process.env.URL);
const reader = await connect(process.env.READER);
// Once it has listed the tools, the SDK holds results against their output schemas.
const tools = (await maker.listTools()).tools;
await reader.listTools();

const progress = [];
const options = { onprogress: (p) => progress.push(p.message) };
const read = (id) => {
  const call = { name: "task_result", arguments: { taskId: id } };
  return one ? reader.callTool(call, undefined, options) : reader.callTool(call, options);
};

const calls = [];
for (const call of JSON.parse(process.env.CALLS)) {
  const told = await maker.callTool(call);
  const id = /"taskId":"([0-9a-f-]+)"/.exec(told.content[0].text)[1];
  let waits = 0;
  let result = await read(id);
  for (; /^status: /.test(result.content[0].text); waits++) result = await read(id);
  calls.push({ told, waits, result });
}
console.log(JSON.stringify({ tools, calls, progress }));
await maker.close();
await reader.close();
