// A client that is asked while it calls tools. PEER says which SDK it is and what it
// knows of tasks; GROUPS has, for each endpoint, the calls to make of it and what to do
// about the question of each.
const peer = process.env.PEER;
const one = peer.startsWith("ts1");
const ext = peer.startsWith("ext");
const { Client } = await import(one ? "@modelcontextprotocol/sdk/client/index.js" : "@modelcontextprotocol/client");
const { StreamableHTTPClientTransport } = await import(
  one ? "@modelcontextprotocol/sdk/client/streamableHttp.js" : "@modelcontextprotocol/client"
);
const types = one ? await import("@modelcontextprotocol/sdk/types.js") : {};
const { createTaskSessionFromClient, resultFromTaskOutcome } = await import("@modelcontextprotocol/ext-tasks/client");

const extension = { "io.modelcontextprotocol/tasks": {} };
const questions = { elicitation: { form: {}, url: {} }, sampling: {}, roots: {} };
const limit = 30_000;

// answers are what the methods are answered with. To open a page says nothing.
const answers = {
  "elicitation/create": ({ kind, secret }) => ({ action: "accept", ...(kind === "form" && { content: { name: secret } }) }),
  "sampling/createMessage": ({ secret }) => ({ role: "assistant", model: "m", content: { type: "text", text: secret } }),
  "roots/list": ({ root }) => ({ roots: [{ uri: root, name: "root" }] }),
};

// connection makes the calls of one endpoint, one after the other.
class connection {
  constructor(url) {
    this.url = new URL(url);
  }

  async open() {
    const capabilities = peer === "exttasks" ? { ...questions, extensions: extension } : questions;
    const mode = { ts2legacy: "legacy", extlegacy: "legacy", ts2auto: "auto", exttasks: "auto" }[peer];
    this.client = new Client({ name: peer, version: "1" }, { capabilities, ...(mode && { versionNegotiation: { mode } }) });
    const schemas = {
      "elicitation/create": types.ElicitRequestSchema,
      "sampling/createMessage": types.CreateMessageRequestSchema,
      "roots/list": types.ListRootsRequestSchema,
    };
    if (!ext) {
      for (const method of Object.keys(answers)) {
        this.client.setRequestHandler(one ? schemas[method] : method, (request) => this.answer(method, request.params));
      }
    }
    await this.client.connect(new StreamableHTTPClientTransport(this.url));
    if (ext) this.session = this.tasks();
  }

  // answer is what becomes of a question.
  async answer(method, params) {
    const { cell } = this;
    cell.asked.push({ method, text: params?.url ?? params?.message ?? JSON.stringify(params?.messages ?? "") });
    if (method === "roots/list") return answers[method](cell); // server-everything asks for them in any call
    switch (cell.answer) {
      case "accept":
        return answers[method](cell);
      case "decline":
      case "cancel":
        return { action: cell.answer };
      case "error":
        if (peer === "ts1tasks") await this.waits.promise;
        throw new Error(`nobody at home: ${cell.secret}`);
      case "gone":
        this.leave.abort();
        if (peer !== "ts2auto" && peer !== "exttasks") await this.client.close();
    }
    return new Promise(() => {}); // silence
  }

  // tasks is the session of ext-tasks, which sends what the SDK's codec would refuse.
  tasks() {
    const framing = {
      protocolVersion: "2026-07-28",
      clientInfo: { name: peer, version: "1" },
      clientCapabilities: { ...questions, extensions: extension },
    };
    let lastId = 1000;
    const rawDispatch = async (request, options) => {
      const name = request.params?.name ?? request.params?.taskId;
      const response = await fetch(this.url, {
        method: "POST",
        signal: options?.signal,
        headers: {
          "Content-Type": "application/json",
          Accept: "application/json, text/event-stream",
          "MCP-Protocol-Version": framing.protocolVersion,
          "Mcp-Method": request.method,
          ...(name === undefined ? {} : { "Mcp-Name": name }),
        },
        body: JSON.stringify({ jsonrpc: "2.0", id: ++lastId, ...request }),
      });
      let text = await response.text();
      if (response.headers.get("content-type").startsWith("text/event-stream")) {
        text = text.split("\n").filter((line) => line.startsWith("data: ")).at(-1).slice(6);
      }
      const answer = JSON.parse(text);
      return answer.error ? { kind: "error", error: answer.error } : { kind: "result", result: answer.result };
    };
    const methods = { elicitation: "elicitation/create", sampling: "sampling/createMessage", roots: "roots/list" };
    return createTaskSessionFromClient(this.client, {
      endpointId: "e2e",
      ...(peer === "exttasks" && { rawDispatch, v2RequestFraming: framing }),
      onInputRequest: (request) => this.answer(methods[request.kind], request.params),
      onError: () => {},
    });
  }

  // call calls a tool and returns its result, however it comes.
  async call(name, args) {
    const options = { signal: this.leave.signal, timeout: limit };
    if (this.session) {
      const execution = await this.session.callTool(name, args, { signal: this.leave.signal });
      return resultFromTaskOutcome((await execution.settle({ signal: this.leave.signal })).outcome);
    }
    if (peer === "ts1tasks") {
      const calls = this.client.experimental.tasks.callToolStream(
        { name, arguments: args }, types.CallToolResultSchema, { ...options, task: { ttl: 60_000 } });
      let result;
      for await (const m of calls) {
        if (m.type === "taskCreated") this.cell.task = m.task.taskId;
        // Of a task that has failed before it was seen to ask, the SDK reads no result.
        if (m.type === "taskStatus" && m.task.status === "input_required") this.waits.resolve();
        if (m.type === "error") throw m.error;
        if (m.type === "result") result = m.result;
      }
      return result;
    }
    return one
      ? this.client.callTool({ name, arguments: args }, undefined, options)
      : this.client.callTool({ name, arguments: args }, options);
  }

  // make makes the call of a cell. What it is told of a task it reads by the tool.
  async make(cell) {
    this.cell = Object.assign(cell, { asked: [], text: "", error: "" });
    this.leave = new AbortController();
    this.waits = {};
    this.waits.promise = new Promise((resolve) => { this.waits.resolve = resolve; });
    const left = new Promise((_, reject) => this.leave.signal.addEventListener("abort", () => reject(new Error("left"))));
    left.catch(() => {});
    const text = (result) => result.content.map((c) => c.text).join("\n");
    try {
      let result = await Promise.race([left, this.call(cell.tool, cell.args)]);
      for (let told; (told = /, arguments {"taskId":"([0-9a-f-]+)"/.exec(text(result))); ) {
        cell.task = told[1];
        do result = await Promise.race([left, this.call("task_result", { taskId: told[1] })]);
        while (/^status: /.test(text(result)));
      }
      cell.text = (result.isError ? "error: " : "") + text(result);
    } catch (error) {
      cell.error = `${error.code ?? ""} ${error.message ?? error}`;
    }
  }
}

// within fails what takes too long, so that the rest is still told.
const within = (promise) =>
  Promise.race([promise, new Promise((_, reject) => setTimeout(reject, limit, new Error("nothing happens")))]);

const groups = JSON.parse(process.env.GROUPS);
const next = groups.values();
const turn = async () => {
  for (const group of next) await run(group);
};
const run = async (group) => {
  try {
    const c = new connection(group.url);
    await within(c.open());
    for (const cell of group.cells) await within(c.make(cell));
    await within(c.client.close());
  } catch (error) {
    group.error = String(error.stack ?? error);
  }
};
await Promise.all(Array.from({ length: Number(process.env.AT_ONCE) }, turn));
await new Promise((resolve) => process.stdout.write(JSON.stringify(groups) + "\n", resolve));
process.exit(0); // some handlers are silent for ever
