// The client of TestTable: for each cell that it reads from standard input it connects to one
// server, as the client that PEER names, and notes what it gets for each operation. A cell names
// the server by a url, an sse url, or a command.
import { existsSync, readFileSync, writeFileSync } from "node:fs";

const peer = process.env.PEER;
const one = peer.startsWith("ts1");
const ext = peer === "ext";
const sdk = "@modelcontextprotocol/sdk/";
const { Client } = await import(one ? sdk + "client/index.js" : "@modelcontextprotocol/client");
const { StdioClientTransport } = await import(one ? sdk + "client/stdio.js" : "@modelcontextprotocol/client/stdio");
const { StreamableHTTPClientTransport } = await import(one ? sdk + "client/streamableHttp.js" : "@modelcontextprotocol/client");
const { SSEClientTransport } = await import(one ? sdk + "client/sse.js" : "@modelcontextprotocol/client");
const types = one ? await import(sdk + "types.js") : {};
const tasks = await import("@modelcontextprotocol/ext-tasks/client");

const modern = "2026-07-28";
const Authorization = "Bearer " + process.env.BEARER; // for the gateway
const limit = 40_000; // for one operation, on a busy machine
const capabilities = {
  elicitation: { form: {} },
  ...(ext && { extensions: { "io.modelcontextprotocol/tasks": {} } }),
};

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// until waits for something that may never be.
async function until(so, ms) {
  for (const end = Date.now() + ms; Date.now() < end; await pause(20)) if (so()) return true;
  return Boolean(so());
}

// abridged is a text that can be compared, however long it is.
const abridged = (text) => (text.length < 1000 ? text : `${text.length} characters, all ${text.replaceAll(text[0], "") === "" ? "" : "not "}the same`);

class connection {
  constructor(cell) {
    this.cell = cell;
  }

  async open() {
    this.client = new Client({ name: peer, version: "1" }, { capabilities, ...(!one && { versionNegotiation: { mode: "auto" } }) });
    if (!ext) {
      this.client.setRequestHandler(one ? types.ElicitRequestSchema : "elicitation/create", () => this.answer());
    }
    const { url, sse, command, args, env, cwd } = this.cell;
    let transport;
    if (command) transport = new StdioClientTransport({ command, args, env, cwd, stderr: "ignore" });
    else if (sse) transport = new SSEClientTransport(new URL(sse));
    else transport = new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers: { Authorization } } });
    await this.client.connect(transport, { timeout: limit });
    if (ext) this.session = this.tasks();
    if (one) await this.client.listTools(); // by which the SDK knows what is run as a task
  }

  async close() {
    await this.client.transport?.terminateSession?.();
    await this.client.close();
  }

  answer() {
    this.got.asked++;
    return { action: "accept", content: { name: "Ada" } };
  }

  // tasks is the session of ext-tasks. To a server of 2026-07-28 it sends what the SDK's own
  // codec would refuse.
  tasks() {
    const isModern = this.client.getNegotiatedProtocolVersion() === modern;
    const framing = { protocolVersion: modern, clientInfo: { name: peer, version: "1" }, clientCapabilities: capabilities };
    return tasks.createTaskSessionFromClient(this.client, {
      endpointId: "e2e",
      ...(isModern && { rawDispatch: this.cell.command ? this.lines() : this.posts(), v2RequestFraming: framing }),
      onInputRequest: () => this.answer(),
      onError: () => {},
    });
  }

  // posts sends requests over HTTP.
  posts() {
    let last = 1000;
    return async (request, options) => {
      const name = request.params?.name ?? request.params?.taskId;
      const response = await fetch(this.cell.url, {
        method: "POST",
        signal: options?.signal,
        headers: {
          Authorization,
          "Content-Type": "application/json",
          Accept: "application/json, text/event-stream",
          "MCP-Protocol-Version": modern,
          "Mcp-Method": request.method,
          ...(name === undefined ? {} : { "Mcp-Name": name }),
        },
        body: JSON.stringify({ jsonrpc: "2.0", id: ++last, ...request }),
      });
      let text = await response.text();
      if (response.headers.get("content-type").startsWith("text/event-stream")) {
        text = text.split("\n").filter((line) => line.startsWith("data: ")).at(-1).slice(6);
      }
      return settled(JSON.parse(text));
    };
  }

  // lines sends requests over the transport that the client has.
  lines() {
    const { transport } = this.client;
    const pass = transport.onmessage;
    const waiting = new Map();
    transport.onmessage = (message, extra) => {
      const take = message.method === undefined && waiting.get(message.id);
      if (take) take(message);
      else pass?.(message, extra);
    };
    let last = 0;
    return (request, options) =>
      new Promise((resolve, reject) => {
        const id = "raw-" + ++last;
        waiting.set(id, (answer) => resolve(settled(answer)));
        options?.signal?.addEventListener("abort", () => {
          void transport.send({ jsonrpc: "2.0", method: "notifications/cancelled", params: { requestId: id } });
          reject(new Error("aborted"));
        });
        transport.send({ jsonrpc: "2.0", id, ...request }).catch(reject);
      });
  }

  // note is progress of the call, or the status message of its task.
  note(message) {
    if (!message) return;
    this.said.add(message);
    writeFileSync(this.mark("noted"), "");
  }

  // mark is a file by which client and tool say something to each other.
  mark(what) {
    return this.cell.marks + "/" + what + "-" + this.key();
  }

  key() {
    return this.cell.name + "-" + peer + (this.cell.again ?? "");
  }

  // call calls a tool and returns its result, however it comes.
  async call(name, args, signal) {
    const params = { name, arguments: args };
    const options = { signal, timeout: limit, onprogress: (p) => this.note(p.message ?? String(p.progress)) };
    if (ext) {
      const execution = await this.session.callTool(name, args, { signal });
      if (execution.kind === "task") {
        this.got.how = "task";
        this.cancel = () => execution.cancel();
      }
      const { outcome } = await execution.settle({ onEvent: (e) => this.note(e.task?.statusMessage) });
      return tasks.resultFromTaskOutcome(outcome);
    }
    if (peer !== "ts1tasks") return one ? this.client.callTool(params, undefined, options) : this.client.callTool(params, options);
    const own = this.client.experimental.tasks;
    let id;
    for await (const m of own.callToolStream(params, types.CallToolResultSchema, options)) {
      if (m.type === "taskCreated") {
        this.got.how = "task";
        id = m.task.taskId;
        this.cancel = () => own.cancelTask(id);
      }
      if (m.type === "taskStatus") this.note(m.task.statusMessage);
      if (m.type === "result") return m.result;
      // Of a task that has failed the stream reads no result.
      if (m.type === "error" && !id) throw m.error;
      if (m.type === "error") return own.getTaskResult(id, types.CallToolResultSchema);
    }
  }

  // settle calls a tool, and reads by the tool task_result what it is told of a task.
  async settle(name, args, signal) {
    const text = (result) => result.content.map((c) => c.text ?? "").join("\n");
    let result = await this.call(name, args, signal);
    for (let told; (told = /, arguments {"taskId":"([0-9a-f-]+)"/.exec(text(result))); ) {
      this.got.how = "told";
      do result = await this.call("task_result", { taskId: told[1] }, signal);
      while (/^status: /.test(text(result)));
    }
    return (result.isError ? "error: " : "") + text(result);
  }

  // cancelled begins a call, and cancels it once it runs: its task, or the call itself.
  async cancelled(name, args) {
    const mark = (what) => existsSync(this.mark(what));
    const leave = new AbortController();
    let failure;
    this.settle(name, { ...args, key: this.key() }, leave.signal).catch((error) => (failure = error));
    await until(() => mark("ran") || failure, limit);
    if (failure) throw failure;
    if (ext || peer === "ts1tasks") await until(() => this.cancel, alone(this.cell) ? 1500 : 15_000);
    if (this.cancel) await this.cancel();
    else leave.abort();
    return (await until(() => mark("gone"), alone(this.cell) ? 5000 : 15_000)) ? "seen" : "not seen";
  }

  async operation({ op, tool, args }) {
    if (op === "list") {
      const { tools } = await this.client.listTools();
      return tools.map((t) => t.name).sort().join(" ");
    }
    if (op === "cancel") return this.cancelled(tool, args);
    // A tool that reports progress does not end before that was seen, or it would not be on a busy machine.
    return this.settle(tool, tool === "steps" ? { ...args, key: this.key() } : args);
  }

  async perform(step) {
    this.got = { op: step.op, how: "result", text: "", said: 0, asked: 0 };
    this.said = new Set();
    this.cancel = undefined;
    try {
      this.got.text = abridged(await within(this.operation(step)));
    } catch (error) {
      this.got.how = "error";
      this.got.code = codeOf(error);
      this.got.text = String(error.message ?? error);
    }
    this.got.said = this.said.size;
    return this.got;
  }
}

const settled = (answer) => (answer.error ? { kind: "error", error: answer.error } : { kind: "result", result: answer.result });

// codeOf is the JSON-RPC code of an error. Errors of the SDK itself have names.
const codeOf = (error) => (typeof error.code === "number" ? error.code : 0);

// within fails what takes too long.
const within = (promise) => {
  let timer;
  const late = new Promise((_, reject) => (timer = setTimeout(reject, limit, new Error("nothing happened"))));
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
};

const run = async (cell) => {
  const c = new connection(cell);
  try {
    await within(c.open());
  } catch (error) {
    return { name: cell.name, got: cell.steps.map(({ op }) => ({ op, how: "error", code: codeOf(error), text: "no connection: " + error.message })) };
  }
  const got = [];
  for (const step of cell.steps) got.push(await c.perform(step));
  await within(c.close()).catch(() => {});
  return { name: cell.name, got };
};

// alone says that the cell is of a server without the gateway.
const alone = (cell) => cell.name.startsWith("direct-");

// failed says that an operation did not go well that may go well at another time. Progress that comes
// together with its result is not heard by clients of the TypeScript SDK.
const failed = ({ op, how, text, said }) =>
  !["fail", "broken"].includes(op) &&
  (how === "error" || text.startsWith("error: ") || text === "not seen" || (op === "progress" && said === 0));

// stubborn runs a cell. What a peer cannot do alone on a busy machine says nothing of the gateway: it
// is tried three times.
const stubborn = async (cell) => {
  const row = await run(cell);
  for (let again = 2; alone(cell) && again <= 3; again++) {
    const left = cell.steps.filter(({ op }) => failed(row.got.find((got) => got.op === op)));
    if (left.length === 0) break;
    const { got } = await run({ ...cell, steps: left, again });
    row.got = row.got.map((before) => got.find(({ op }) => op === before.op) ?? before);
  }
  return row;
};

process.on("unhandledRejection", () => {}); // of calls that were left
const cells = JSON.parse(readFileSync(0, "utf8"));
const rows = [];
const next = cells.values();
const turn = async () => {
  for (const cell of next) rows.push(await stubborn(cell));
};
await Promise.all(Array.from({ length: Number(process.env.AT_ONCE) }, turn));
await new Promise((resolve) => process.stdout.write(JSON.stringify(rows) + "\n", resolve));
process.exit(0); // some calls are never answered
