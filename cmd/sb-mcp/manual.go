package main

// manual is what --help prints.
const manual = `sb-mcp - speak MCP to one agent, for one subject of SubjectBroker

USAGE
  sb-mcp --subject S [--profile P] [--server-name N] [--home DIR] [--socket DIR]
  sb-mcp check --subject S [--profile P] [--home DIR] [--socket DIR]
  sb-mcp can --subject S [--profile P] [--home DIR] [--socket DIR] CAPABILITY
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

  Inside a tree that sbctl run started the daemon knows whose it is: subject and
  profile are those of the tree, whatever the flags say.

COMMANDS
  check    open a run for the subject, print subject, profile, tier and versions,
           end it
  can      say whether the subject may do something by itself, such as
           reach:api.example.com: a host asks before it uses a tool of its own.
           Prints allow, deny or pending, and the reason. Nothing is used up;
           each answer is recorded. Exits 0 for allow, 3 for anything else

FLAGS
  --subject S      the subject to speak for; required
  --profile P      the profile to run under: what its tools do not need is denied
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
  sb-mcp can --subject worker reach:api.example.com && curl https://api.example.com/
  An agent's configuration, as sbctl connect writes it:
    {"mcpServers": {"subject-broker": {"command": "/usr/local/bin/sb-mcp", "args": ["--subject", "worker"]}}}

SEE ALSO
  sbctl connect, sbctl why, sbctl doctor
`
