// A client of a TypeScript SDK whose program makes a call up to TRIES times, with the limits of the SDK, until it is answered.
// Its user aborts a call after ABORT ms, if that is not 0. MODE is the negotiation of 2.x; without it, it is 1.x.
const mode = process.env.MODE;
const { Client } = await import(mode ? "@modelcontextprotocol/client" : "@modelcontextprotocol/sdk/client/index.js");
const { StreamableHTTPClientTransport } = await import(mode ? "@modelcontextprotocol/client" : "@modelcontextprotocol/sdk/client/streamableHttp.js");

const client = new Client({ name: "ts", version: "1" }, mode ? { versionNegotiation: { mode } } : undefined);
const requests = [];
const sends = (...args) => {
  requests.push(fetch(...args));
  return requests.at(-1);
};
await client.connect(new StreamableHTTPClientTransport(new URL(process.env.URL), { fetch: sends }));
const call = JSON.parse(process.env.CALL);
const failures = [];
let result = null;
let aborted = 0;
for (let i = 0; i < Number(process.env.TRIES) && result === null; i++) {
  const user = new AbortController();
  if (Number(process.env.ABORT)) {
    setTimeout(() => {
      aborted = Date.now();
      user.abort();
    }, Number(process.env.ABORT));
  }
  try {
    const options = { signal: user.signal };
    result = await (mode ? client.callTool(call, options) : client.callTool(call, undefined, options));
  } catch (e) {
    failures.push(String(e));
  }
}
await new Promise(setImmediate); // the word that a call is cancelled is sent after the call has failed
await Promise.allSettled(requests);
console.log(JSON.stringify({ failures, result: result ?? undefined, aborted }));
await client.close();
