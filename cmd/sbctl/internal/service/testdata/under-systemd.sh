#!/usr/bin/env bash
# under-systemd.sh HOME BIN: a user's systemd in a mount and pid namespace of
# its own (see systemd_linux_test.go), and the service's whole life in it. Each
# step that fails ends the script; what is printed before says which it was.
set -euo pipefail

mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system /run/user/0 # the first is how systemd knows that the machine runs it
export HOME=$1 XDG_RUNTIME_DIR=/run/user/0 PATH=$2:/usr/bin:/bin:/usr/sbin:/sbin
state=$HOME/.local/state/subject-broker

step() { echo "== $*"; }
want() { # WANT COMMAND…: the first line of what the command prints
	local want=$1 got
	shift
	got=$("$@" 2>/dev/null | head -n 1) || true
	[ "$got" = "$want" ] || { echo "$*: got '$got', want '$want'"; exit 1; }
}
property() { systemctl --user show "${2:-subject-broker.service}" --property="$1" --value; }

/usr/lib/systemd/systemd --user >/dev/null 2>&1 &
for _ in $(seq 200); do
	[ -S /run/user/0/systemd/private ] && break
	sleep 0.1
done

step "a service that is not installed"
sbctl service start && exit 1

step install
sbctl service install 2>&1
sbctl service start
want active property ActiveState
[ "$(stat -c %a "$state" "$state/run" "$state/run/broker" "$state/run/operator" | sort -u)" = 700 ]
[ "$(stat -c %a "$state/run/broker/broker.sock" "$state/run/operator/operator.sock" | sort -u)" = 600 ]

step "what holds for the daemon"
pid=$(property MainPID)
[ "$pid" = "$(cat "$state/lock")" ]
grep -q '^Umask:[[:space:]]*0077$' "/proc/$pid/status"
grep -q '^NoNewPrivs:[[:space:]]*1$' "/proc/$pid/status"
grep -q '^Max core file size  *0  *0 ' "/proc/$pid/limits"

step "a shim with almost no environment"
sbctl subject add worker
env -i HOME="$HOME" PATH=/usr/bin:/bin "$2/sb-mcp" check --subject worker

step "a gateway beside it"
sbctl service install --gateway --listen 192.0.2.1:7070 && exit 1
ip link set lo up 2>/dev/null || true
sbctl service install --gateway --unix "$HOME/gateway.sock" 2>&1
want active property ActiveState subject-broker-gateway.service
gateway=$(property MainPID subject-broker-gateway.service)
grep -q '^NoNewPrivs:[[:space:]]*1$' "/proc/$gateway/status"
grep -q '^Seccomp:[[:space:]]*2$' "/proc/$gateway/status"
sbctl grant worker plan 2>/dev/null || true
key=$(sbctl agent-key mint --subject worker)
status() { # KEY: the status of initialize with it
	printf 'header = "Authorization: Bearer %s"\n' "$1" | curl --config - --silent --output /dev/null --write-out '%{http_code}' --unix-socket "$HOME/gateway.sock" \
		--header 'Content-Type: application/json' --header 'Accept: application/json, text/event-stream' \
		--data '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}' http://localhost/mcp
}
if command -v curl >/dev/null; then
	for _ in $(seq 100); do # it says that it runs before it listens
		[ -S "$HOME/gateway.sock" ] && break
		sleep 0.1
	done
	want 200 status "$key"
	want 401 status "${key}x"
fi

step restart
sbctl service restart
[ "$pid" != "$(property MainPID)" ]
[ "$gateway" != "$(property MainPID subject-broker-gateway.service)" ]
sbctl status >/dev/null

step "an installed service, a second time"
want "changed:  no" sh -c 'sbctl service install 2>/dev/null | grep changed'

step "killed, it comes back"
kill -KILL "$(property MainPID)"
for _ in $(seq 100); do
	sbctl status >/dev/null 2>&1 && break
	sleep 0.2
done
want active property ActiveState

step "stopped, it stays stopped and leaves cleanly"
sbctl service stop
want inactive property ActiveState
want success property Result
want inactive property ActiveState subject-broker-gateway.service
want success property Result subject-broker-gateway.service
[ ! -e "$state/run/broker/broker.sock" ]
code=0
sbctl status 2>/dev/null || code=$?
[ "$code" = 4 ]

step "its sockets alone start it"
systemctl --user start subject-broker-operator.socket subject-broker-broker.socket
want inactive property ActiveState
sbctl status >/dev/null
want active property ActiveState

step "beside a daemon that was started by hand it does not start"
sbctl service stop
sbd 2>/dev/null &
hand=$!
for _ in $(seq 100); do
	sbctl status >/dev/null 2>&1 && break
	sleep 0.1
done
sbctl service start && exit 1
sbctl status >/dev/null
kill "$hand"
wait "$hand"

step uninstall
sbctl service start
sbctl service uninstall
[ -z "$(ls "$HOME/.config/systemd/user")" ]
[ -s "$state/vault.db" ]
step 'done'
