// A client of the TypeScript SDK that knows the address of the gateway and signs in by the SDK's
// own OAuth: it is led to the provider, whose user agrees at once, and lists the tools with the
// token. After WAIT, when the token has expired, it lists them again. SDK says which generation,
// MODE the era. Without CLIENT_ID it registers. With REVOKE it revokes its tokens at that address, and
// lists the tools once more, for which it has to sign in anew. With STEP_UP it then calls a tool, for which
// its token has not the scope. With CALL it calls the tool as well, before and after WAIT, and tells the sessions.
console.warn = () => {}; // 2.x tells of tokens that are no good any more
const one = process.env.SDK === "1";
const { Client } = await import(one ? "@modelcontextprotocol/sdk/client/index.js" : "@modelcontextprotocol/client");
const { StreamableHTTPClientTransport } = await import(
  one ? "@modelcontextprotocol/sdk/client/streamableHttp.js" : "@modelcontextprotocol/client"
);

const asked = [];
let visited, verifier, tokens, discovered, registered, visits = 0;
const provider = {
  redirectUrl: "http://127.0.0.1/callback",
  clientMetadata: { redirect_uris: ["http://127.0.0.1/callback"], scope: "openid" },
  state: () => "state-of-the-client",
  clientInformation: () => !process.env.CLIENT_ID ? registered : {
    client_id: process.env.CLIENT_ID, client_secret: process.env.CLIENT_SECRET,
    token_endpoint_auth_method: "client_secret_post", issuer: process.env.ISSUER,
  },
  saveClientInformation: (c) => { registered = c; },
  tokens: () => tokens,
  saveTokens: (t) => { tokens = t; },
  invalidateCredentials: (what) => { if (what === "all" || what === "tokens") tokens = undefined; },
  redirectToAuthorization: async (url) => {
    asked.push(url.searchParams.get("resource"));
    const answer = await fetch(url, { redirect: "manual" });
    visited = new URL(answer.headers.get("location")).searchParams;
    visits++;
  },
  saveCodeVerifier: (v) => { verifier = v; },
  codeVerifier: () => verifier,
  saveDiscoveryState: (d) => { discovered = d; },
  discoveryState: () => discovered,
};

let transport;
const signedIn = async (ask) => {
  try {
    return await ask();
  } catch (e) {
    if (!visited) throw e;
    await transport.finishAuth(visited.get("code"));
    visited = undefined;
    return signedIn(ask);
  }
};
const client = await signedIn(async () => {
  const client = new Client({ name: "host", version: "1" }, one ? {} : { versionNegotiation: { mode: process.env.MODE } });
  transport = new StreamableHTTPClientTransport(new URL(process.env.URL), { authProvider: provider });
  await client.connect(transport);
  return client;
});
const list = () => signedIn(async () => (await client.listTools()).tools.map((t) => t.name));
const tools = await list();
const sessions = [transport.sessionId], calls = [];
const call = () => signedIn(async () => (await client.callTool({ name: "who", arguments: {} })).content[0].text);
if (process.env.CALL) calls.push(await call());
const first = tokens.access_token;
await new Promise((resolve) => setTimeout(resolve, Number(process.env.WAIT)));
if (process.env.CALL) calls.push(await call());
const again = await list();
const refreshed = tokens.access_token !== first;
let afterwards;
if (process.env.REVOKE) {
  for (const token of [tokens.access_token, tokens.refresh_token]) {
    await fetch(process.env.REVOKE, { method: "POST", body: new URLSearchParams({ token }) });
  }
  afterwards = await list();
}
let said;
if (process.env.STEP_UP) {
  tokens = { ...tokens, refresh_token: undefined }; // or 1.x only refreshes, which gives it no other scope
  said = await call();
}
sessions.push(transport.sessionId);
console.log(JSON.stringify({ said, calls, sessions, tools, again, afterwards, asked, refreshed, visits, client: registered?.client_id }));
await client.close();
