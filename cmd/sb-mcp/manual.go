package main

import "strings"

// manualOf is the manual of a command: its own part where it has one, else all of it.
func manualOf(command string) string {
	if command != commandServe {
		return manual
	}
	var b strings.Builder
	b.WriteString("sb-mcp serve - speak MCP over HTTP to many agents, each by its agent key\n\nUSAGE\n")
	b.WriteString(between(manual, "  sb-mcp serve {", "  sb-mcp --version"))
	b.WriteString("\nDESCRIPTION\n" + between(manual, "  sb-mcp serve is a gateway", "\nFLAGS\n"))
	b.WriteString("\nFLAGS\n" + between(manual, "  --server-name N", "  --server NAME"))
	b.WriteString(strings.ReplaceAll(between(manual, "  --listen ADDRESS:PORT", "  --version"), "serve: ", ""))
	b.WriteString("  --help           print this\n\nENVIRONMENT\n" + between(manual, "  SB_HOME ", "  A wrapped server gets"))
	b.WriteString("\nEXIT STATUS\n" + between(manual, "  0  done", "  wrap exits as"))
	b.WriteString("\nEXAMPLES\n" + between(manual, "    sb-mcp serve --listen", "  A wrapped server in"))
	b.WriteString("\nSEE ALSO\n  sb-mcp --help, sbctl agent-key, sbctl service install --gateway, sbctl doctor\n")
	return b.String()
}

// helpOf is how the manual of a command is asked for.
func helpOf(command string) string {
	if command != commandServe {
		return "sb-mcp --help"
	}
	return "sb-mcp serve --help"
}

// between is what stands in text from one mark up to another, both of which are there.
func between(text, from, to string) string {
	_, rest, _ := strings.Cut(text, from)
	part, _, _ := strings.Cut(rest, to)
	return from + part
}

// manual is what --help prints.
const manual = `sb-mcp - speak MCP to one agent, for one subject of SubjectBroker

USAGE
  sb-mcp --subject S [--profile P] [--server-name N] [--home DIR] [--socket DIR]
  sb-mcp check --subject S [--profile P] [--home DIR] [--socket DIR]
  sb-mcp can --subject S [--profile P] [--home DIR] [--socket DIR] CAPABILITY
  sb-mcp wrap --subject S --server NAME [--env VAR]... [--max-line N]
              [--max-server-line N] [--profile P] [--home DIR] [--socket DIR]
              -- CMD [ARG]...
  sb-mcp serve {--listen ADDRESS:PORT | --unix PATH | both}
               [--tls-cert FILE --tls-key FILE] [--host NAME]...
               [--server-name N] [--check]
               [--home DIR] [--socket DIR]
  sb-mcp --version | --help

DESCRIPTION
  An agent's configuration starts sb-mcp, once for each subject. It speaks the
  Model Context Protocol on standard input and output, and asks the daemon, sbd,
  for what the subject may have. It holds no key and decides nothing.

  The agent sees four tools (list_resources, read_resource, explain_decision,
  capability_report) and what it may read as resources sb://resource/NAME. Both
  eras of the protocol are spoken: sessions that begin with initialize, from
  revision 2024-11-05 on, and the stateless revision 2026-07-28.

  While the subject may read a tenant of the shared memory, or write to one
  (sbctl tenant), there are search_knowledge, browse_recent, knowledge_stats,
  read_entry and history, or capture_knowledge, too.

  Beside them stand the tools of servers that sbd runs (sbctl server add), as
  SERVER_TOOL, everything else as the server describes it; a name over 64
  characters is left out. A call of one is judged and recorded before its server
  sees it, and refused as below, under WRAPPING A SERVER. What the server answers
  comes as it is, up to 64 MiB, with progress and cancellation. The agent hears
  when the list is another one.

  It starts and answers without a daemon, and looks for it until it is there:
  calls are then refused with BROKER_UNAVAILABLE. It ends when its input does,
  or on SIGTERM, after answering what is in flight.

  Inside a tree that sbctl run started the daemon knows whose it is: subject and
  profile are those of the tree, whatever the flags say.

COMMANDS
  check    open a run for the subject, print subject, profile, tier and versions,
           end it
  can      say whether the subject may do something by itself, such as
           reach:api.example.com: a host asks before it uses a tool of its own.
           Prints allow, deny or pending, and the reason. Nothing is used up;
           each answer is recorded. Exits 0 for allow, 3 for anything else
  wrap     put another MCP server behind the broker; see below
  serve    speak to many agents over HTTP, each by its agent key; see below
  host     run one server for the daemon, or speak to one over HTTP, in namespaces
           of its own where the kernel gives them; started by sbd only

WRAPPING A SERVER
  sb-mcp wrap starts CMD, an MCP server that speaks on standard input and output,
  and passes lines between it and the agent. The daemon judges each call of a tool
  before the server sees it: grants (call:NAME/TOOL) say whether it may be made at
  all, the policy of the subject and the server how often, with which arguments,
  and whether a person is asked first. Every call is recorded, allowed or not.

  Wrapping guides, hosting enforces: an agent that may start sb-mcp may start CMD
  itself, and the server runs as the agent does, without any credential from the
  broker. What must not be got around, and what needs a secret, is put behind the
  broker with sbctl server add, which has sbd run it.

  What passes. Each call is written again from what was judged: without space,
  numbers and the order of keys as they were, the method as it was understood
  (trimmed, in lower case; tools/call and call_tool are calls). Ids stay byte for
  byte. Unknown fields pass both ways, and so do answers, notifications, progress,
  cancellations, and the server's own questions with their answers. Setting up a
  session, listing and reading pass unjudged; any other method is refused unless
  the policy lists it.
  Refused are duplicate keys, keys in another case than the protocol's, text that
  is not UTF-8, batches, and values nested more than 128 deep. Lines of the server
  that are no JSON-RPC messages are dropped, and counted at the end.

  Lists of tools. A server that was never trusted is judged by grants and policy
  alone. After sbctl server trust NAME the agent is shown the tools that it may
  call, as they were trusted: what is new or changed is withheld until it is
  trusted again.

  What an agent is told. No permission: a result with isError. Blocked by a
  policy: error -32000, with the policy and the next step in the message and in
  data. Waiting for a person: the call waits as long as its policy says, with
  progress every 5 seconds where that was asked for, then error -32001 whose
  message begins APPROVAL_PENDING id=; the same call made again gets the answer. A
  malformed call: -32602.

  Without a daemon calls are refused with BROKER_UNAVAILABLE and the list of tools
  is empty, everything else passes; the daemon is looked for until it is there.

  The end. When the agent's last line was answered the server's input is closed;
  it has 10 seconds to end, 5 more after SIGTERM, and is then killed. SIGTERM,
  SIGINT, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to the server and all
  of its process group. What still runs in that group when the server has ended is
  killed, and on Linux the server dies with sb-mcp, however that ends. A policy
  that kills answers what is open and ends the server.

SERVING OVER HTTP
  sb-mcp serve is a gateway for agents that are elsewhere: on another machine, in
  a container, in a browser's back end. It speaks MCP (Streamable HTTP, sessions
  and the stateless revision 2026-07-28) at /mcp. Who asks is said by the agent
  key in the header Authorization: Bearer KEY, and by nothing else: sbd judges and
  records it at each request. Keys are made with sbctl agent-key mint. An agent
  gets the same tools as on standard input.

  Addresses of this machine alone (127.0.0.0/8, ::1) may be served without TLS;
  any other needs --tls-cert and --tls-key. The certificate is read again when its
  files change, and on SIGHUP; files that are no good, or are not valid now, change
  nothing. Without TLS SIGHUP is a SIGTERM. A request for a host that is not
  localhost, the address that it came to or a --host, or from a page of another
  one, is refused.

  Refused are a key that is missing or not good (401, with the reason), a session
  of another key (404), what is too much (429, with Retry-After) or too large
  (413). Without the daemon, or while its vault is locked, nobody gets in (503).
  A session's streams end with its key. /healthz says up or down.

  What goes wrong with the daemon is said on standard error, once for each reason.
  On SIGTERM and SIGINT what is in flight is answered, within 5 seconds.

FLAGS
  --subject S      the subject to speak for; required, but for serve
  --profile P      the profile to run under: what its tools do not need is denied
  --server-name N  the name that the agent is told (default subject-broker)
  --home DIR       the daemon's home
  --socket DIR     the directory that holds the daemon's broker/ and operator/
                   (default run/ in the home)
  --server NAME    wrap: the name under which policy knows the server, a-z, 0-9
                   and dashes; it needs no sbctl server add; required
  --env VAR        wrap: pass this variable on to the server; may be repeated
  --max-line N     wrap: the longest line from the agent, in bytes (default 10 MiB)
  --max-server-line N
                   wrap: the longest line from the server, in bytes (default 64 MiB)
  --listen ADDRESS:PORT
                   serve: where to listen: an IP address or localhost; port 0
                   takes a free one, which is said on standard error
  --unix PATH      serve: a socket of this account, in a directory that nobody
                   else can write to; with --listen or without it
  --tls-cert FILE  serve: the certificate with its chain, PEM
  --tls-key FILE   serve: its key, PEM, not open to everybody
  --host NAME      serve: a name or address, without port, under which agents reach
                   it; may be repeated
  --check          serve: say what is wrong with the options, the certificate and
                   the socket's directory, and listen to nobody
  --version        print the version
  --help           print this

ENVIRONMENT
  SB_HOME          the home, when --home is not given
  SB_SOCKET        the socket directory, when --socket is not given
  HOME             where the default home is looked for:
                   ~/.local/state/subject-broker, on macOS
                   ~/Library/Application Support/subject-broker
  Nothing else is read. Variables that would make libraries print what passes
  through (GODEBUG, GRPC_*, LD_* and the like) are removed at the start.
  A wrapped server gets PATH, HOME, USER, LANG, LC_*, TERM and TMPDIR, and what
  --env names; never SB_* or AGENT_BRAKE_*, nor what is removed at the start.

EXIT STATUS
  0  done           3  denied
  1  failed         4  the daemon cannot be reached, or its vault is locked
  2  wrong usage    5  an integrity check failed
  wrap exits as the server did, with 128 and the signal's number when a signal
  ended it, and with 1 when a policy ended the session or CMD could not be started.

EXAMPLES
  sb-mcp check --subject worker
  sb-mcp can --subject worker reach:api.example.com && curl https://api.example.com/
  An agent's configuration, as sbctl connect writes it:
    {"mcpServers": {"subject-broker": {"command": "/usr/local/bin/sb-mcp", "args": ["--subject", "worker"]}}}
  For agents elsewhere; and a key for one of them:
    sb-mcp serve --listen 127.0.0.1:7070
    sbctl agent-key mint --subject worker --ttl 30d
  A wrapped server in the same place:
    {"mcpServers": {"files": {"command": "/usr/local/bin/sb-mcp", "args":
      ["wrap", "--subject", "worker", "--server", "files", "--", "npx", "server-filesystem", "/data"]}}}

SEE ALSO
  sbctl connect, sbctl agent-key, sbctl server, sbctl policy, sbctl why,
  sbctl doctor
`
