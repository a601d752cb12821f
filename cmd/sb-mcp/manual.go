package main

// manual is what --help prints.
const manual = `sb-mcp - speak MCP to one agent, for one subject of SubjectBroker

USAGE
  sb-mcp --subject S [--profile P] [--server-name N] [--home DIR] [--socket DIR]
  sb-mcp check --subject S [--profile P] [--home DIR] [--socket DIR]
  sb-mcp --version | --help

DESCRIPTION
  An agent's configuration starts sb-mcp, once for each subject. It speaks the
  Model Context Protocol on standard input and output, and asks the daemon, sbd,
  for what the subject may have. It holds no key and decides nothing.

  The agent sees four tools (list_resources, read_resource, explain_decision,
  capability_report) and what it may read as resources sb://resource/NAME. Both
  eras of the protocol are spoken: sessions that begin with initialize, from
  revision 2024-11-05 on, and the stateless revision 2026-07-28.

  It starts and answers without a daemon, and looks for it until it is there:
  calls are then refused with BROKER_UNAVAILABLE. It ends when its input does,
  or on SIGTERM, after answering what is in flight.

COMMANDS
  check    open a run for the subject, print subject, tier and versions, end it

FLAGS
  --subject S      the subject to speak for; required
  --profile P      the profile to run under
  --server-name N  the name that the agent is told (default subject-broker)
  --home DIR       the daemon's home
  --socket DIR     the directory that holds the daemon's broker/ and operator/
                   (default run/ in the home)
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

EXIT STATUS
  0  done           3  denied
  1  failed         4  the daemon cannot be reached, or its vault is locked
  2  wrong usage    5  an integrity check failed

EXAMPLES
  sb-mcp check --subject worker
  An agent's configuration, as sbctl connect writes it:
    {"mcpServers": {"subject-broker": {"command": "/usr/local/bin/sb-mcp", "args": ["--subject", "worker"]}}}

SEE ALSO
  sbctl connect, sbctl why, sbctl doctor
`
