// A client of AG-UI as an application has one: HttpAgent. Arguments: the library, the URL, the thread. SHELLBACK_TOKEN
// has the token. Each line of standard input is one run: {"say": TEXT} adds a message; the rest is given to runAgent.
// Each event is a line of standard output, and so is the end of a run: {"ended": ERROR or null, "messages": [...]}.
import { createInterface } from "node:readline";

const [library, url, threadId] = process.argv.slice(2);
const { HttpAgent } = await import(library);
process.on("unhandledRejection", () => {}); // the library leaves one beside the error that it throws
const agent = new HttpAgent({ url, threadId, headers: { Authorization: `Bearer ${process.env.SHELLBACK_TOKEN}` } });
const told = (fact) => process.stdout.write(JSON.stringify(fact) + "\n");

for await (const line of createInterface({ input: process.stdin })) {
  const { say, ...run } = JSON.parse(line);
  if (say !== undefined) agent.messages.push({ id: `said-${agent.messages.length}`, role: "user", content: say });
  let ended = null;
  try {
    await agent.runAgent(run, { onEvent: ({ event }) => told(event) });
  } catch (error) {
    ended = String(error.message);
  }
  told({ ended, messages: agent.messages, interrupts: agent.pendingInterrupts });
}
