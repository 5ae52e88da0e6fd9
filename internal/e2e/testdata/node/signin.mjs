// A client of the TypeScript SDK that knows the address of the gateway and signs in by the SDK's
// own OAuth: it is led to the provider, whose user agrees at once, and lists the tools with the
// token. After WAIT, when the token has expired, it lists them again. SDK says which generation,
// MODE the era.
const one = process.env.SDK === "1";
const { Client } = await import(one ? "@modelcontextprotocol/sdk/client/index.js" : "@modelcontextprotocol/client");
const { StreamableHTTPClientTransport } = await import(
  one ? "@modelcontextprotocol/sdk/client/streamableHttp.js" : "@modelcontextprotocol/client"
);

const asked = [];
let visited, verifier, tokens, discovered;
const provider = {
  redirectUrl: "http://127.0.0.1/callback",
  clientMetadata: { redirect_uris: ["http://127.0.0.1/callback"], scope: "openid" },
  state: () => "state-of-the-client",
  clientInformation: () => ({
    client_id: process.env.CLIENT_ID, client_secret: process.env.CLIENT_SECRET,
    token_endpoint_auth_method: "client_secret_post", issuer: process.env.ISSUER,
  }),
  tokens: () => tokens,
  saveTokens: (t) => { tokens = t; },
  redirectToAuthorization: async (url) => {
    asked.push(url.searchParams.get("resource"));
    const answer = await fetch(url, { redirect: "manual" });
    visited = new URL(answer.headers.get("location")).searchParams;
  },
  saveCodeVerifier: (v) => { verifier = v; },
  codeVerifier: () => verifier,
  saveDiscoveryState: (d) => { discovered = d; },
  discoveryState: () => discovered,
};

const connect = async () => {
  const client = new Client({ name: "host", version: "1" }, one ? {} : { versionNegotiation: { mode: process.env.MODE } });
  const transport = new StreamableHTTPClientTransport(new URL(process.env.URL), { authProvider: provider });
  try {
    await client.connect(transport);
  } catch (e) {
    if (!visited) throw e;
    await transport.finishAuth(visited.get("code"));
    visited = undefined;
    return connect();
  }
  return client;
};
const client = await connect();
const list = async () => (await client.listTools()).tools.map((t) => t.name);
const tools = await list();
const first = tokens.access_token;
await new Promise((resolve) => setTimeout(resolve, Number(process.env.WAIT)));
const again = await list();
console.log(JSON.stringify({ tools, again, asked, refreshed: tokens.access_token !== first }));
await client.close();
