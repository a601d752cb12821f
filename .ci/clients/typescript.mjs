// A client made with a TypeScript SDK, driven from outside: reads one command a
// line, {"id":1,"do":"tools"}, and writes one answer a line, and in between what it
// was told without asking. Arguments: node_modules, the era, the gateway's endpoint.
// The key comes from SB_AGENT_KEY.
import { createInterface } from 'node:readline';

const [modules, era, url] = process.argv.slice(2);
const write = (line) => process.stdout.write(JSON.stringify(line) + '\n');
const headers = {};
const present = (key) => {
  if (key) headers.Authorization = `Bearer ${key}`;
  else delete headers.Authorization;
};
present(process.env.SB_AGENT_KEY);

// The SDK of the revisions with sessions, and the one that also has the revision without.
const sessions = era === 'sessions';
const { Client } = await import(`${modules}/@modelcontextprotocol/${sessions ? 'sdk/dist/esm/client/index.js' : 'client/dist/index.mjs'}`);
const { StreamableHTTPClientTransport } = await import(`${modules}/@modelcontextprotocol/${sessions ? 'sdk/dist/esm/client/streamableHttp.js' : 'client/dist/index.mjs'}`);

const client = new Client({ name: 'typescript', version: '1' }, sessions ? {} : { versionNegotiation: { mode: { pin: '2026-07-28' } } });
client.fallbackNotificationHandler = async ({ method }) => write({ note: method });
client.onerror = (error) => write({ note: 'error', text: String(error.message) });
// By itself it gives up after two attempts, which a restart may outlast.
const reconnectionOptions = { initialReconnectionDelay: 100, maxReconnectionDelay: 1000, reconnectionDelayGrowFactor: 1.5, maxRetries: 10000 };
const transport = new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers }, reconnectionOptions });

const commands = {
  connect: async () => {
    await client.connect(transport);
    return { server: client.getServerVersion(), session: transport.sessionId ?? '' };
  },
  listen: async () => {
    const listening = await client.listen({ toolsListChanged: true, resourcesListChanged: true });
    listening.closed.then((how) => write({ note: 'closed', text: how }));
  },
  key: async ({ key }) => present(key),
  tools: () => client.listTools(),
  resources: () => client.listResources(),
  read: ({ uri }) => client.readResource({ uri }),
  call: ({ name, arguments: args, progress }) => {
    const options = progress ? { onprogress: (said) => write({ note: 'progress', text: `${said.progress}/${said.total}` }) } : {};
    return sessions ? client.callTool({ name, arguments: args }, undefined, options) : client.callTool({ name, arguments: args }, options);
  },
  terminate: () => transport.terminateSession().then(() => null),
  close: () => client.close().then(() => null),
};

// told is all that an error says, with what is behind it.
const told = (error) => [error.message, error.data && JSON.stringify(error.data), error.cause && told(error.cause)].filter(Boolean).join(': ');

const work = [];
for await (const line of createInterface({ input: process.stdin })) {
  const { id, do: command, ...args } = JSON.parse(line);
  work.push(commands[command](args).then(
    (result) => write({ id, result: result ?? null }),
    (error) => write({ id, error: told(error) }),
  ));
}
await Promise.all(work);
process.exit(0);
