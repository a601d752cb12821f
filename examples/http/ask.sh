#!/bin/sh
# Asks the broker over HTTP, without a session: ask.sh lists what may be read,
# ask.sh NAME reads it. The key comes from SB_AGENT_KEY and goes to curl on its
# standard input: arguments can be read by others.
set -eu
: "${SB_AGENT_KEY:?the agent key, as sbctl agent-key mint printed it}"
gateway=${SB_GATEWAY:-http://127.0.0.1:7070/mcp}

tool=list_resources
arguments='{}'
if [ $# -gt 0 ]; then
	case $1 in
	*[!A-Za-z0-9._-]*) echo "ask.sh: $1 is not a name" >&2 && exit 2 ;;
	esac
	tool=read_resource
	arguments="{\"resourceId\":\"$1\"}"
fi
meta='{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"ask.sh","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}'

printf 'header = "Authorization: Bearer %s"\n' "$SB_AGENT_KEY" |
	curl --config - --silent --show-error --fail-with-body \
		--header 'Content-Type: application/json' \
		--header 'Accept: application/json' \
		--header 'Mcp-Protocol-Version: 2026-07-28' \
		--header 'Mcp-Method: tools/call' \
		--header "Mcp-Name: $tool" \
		--data "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"$tool\",\"arguments\":$arguments,\"_meta\":$meta}}" \
		"$gateway"
echo
