// The tools of TestTable, for the servers of both TypeScript SDKs. Besides its arguments a tool
// gets how to reach its client: { progressToken, notify, signal }. What a tool that is cancelled
// sees it notes in the directory MARKS. How a server asks is its own: it adds the tool "ask".
import { existsSync, writeFileSync } from "node:fs";

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const mark = (what, key) => writeFileSync(process.env.MARKS + "/" + what + "-" + key, "");

export const text = (text, more) => ({ content: [{ type: "text", text }], ...more });

// question is what the tool "ask" asks.
export const question = { message: "who?", requestedSchema: { type: "object", properties: { name: { type: "string" } } } };

// tools are those that both servers have; RpcError is the SDK's class of JSON-RPC errors.
export const tools = (RpcError) => ({
  echo: async ({ text: said }) => text(said),
  steps: async ({ key }, { progressToken, notify }) => {
    for (let progress = 1; progress <= 3; progress++) {
      const params = { progressToken, progress, total: 3, message: "step " + progress };
      if (progressToken !== undefined) await notify({ method: "notifications/progress", params });
      await pause(250);
    }
    for (let i = 0; i < 100 && !existsSync(process.env.MARKS + "/noted-" + key); i++) await pause(50);
    return text("walked");
  },
  slow: async () => {
    await pause(800);
    return text("slept");
  },
  hang: ({ key }, { signal }) => {
    mark("ran", key);
    return new Promise((resolve) =>
      signal.addEventListener("abort", () => {
        mark("gone", key);
        resolve(text("late"));
      }),
    );
  },
  fail: async () => text("failed on purpose", { isError: true }),
  broken: async () => {
    throw new RpcError(-32010, "broken on purpose");
  },
  large: async () => text("x".repeat(4 << 20)),
});
