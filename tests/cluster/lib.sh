# Shared by the scripts here; sourced, not run.
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
BIN=${NODE_LB_CLUSTER_BIN:-$HOME/.cache/node-lb/cluster/bin}
RUN=${NODE_LB_CLUSTER_RUN:-$HOME/.cache/node-lb/cluster/run}
# One control group subtree per cluster, named after its run directory.
CG=node-lb-$(printf %s "$RUN" | cksum | cut -d' ' -f1)
# Hierarchies to make that subtree in: one a mount (v1, hybrid), or the only one (v2).
if [ "$(stat -fc %T /sys/fs/cgroup)" = cgroup2fs ]; then CGROUPS=/sys/fs/cgroup
else CGROUPS=$(awk '$3 ~ /^cgroup2?$/ && $2 ~ "^/sys/fs/cgroup/" {print $2}' /proc/mounts); fi
# Where cgroup v2 is, for programs attached to its groups.
UNIFIED=$(awk '$3 == "cgroup2" {print $2; exit}' /proc/mounts)

# A web proxy of the machine's has no part in the cluster's traffic; only build.sh may need one.
[ "${0##*/}" = build.sh ] || unset {http,https,all,no}_proxy {HTTP,HTTPS,ALL,NO}_PROXY

die() { echo "$(basename "$0"): $*" >&2; exit 1; }
T0=${EPOCHREALTIME/./}
say() { local ms=$(((${EPOCHREALTIME/./} - T0) / 1000)); printf '%4d.%ds %s\n' $((ms / 1000)) $((ms % 1000 / 100)) "$*"; }

# A pid alone may come to mean another process: keep its start time beside it.
start_time() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }
record() { echo "$2 $(start_time "$2")" > "$RUN/pids/$1"; }       # record NAME PID
alive() { # alive NAME: prints its pid if that very process still runs
	local pid st
	{ read -r pid st < "$RUN/pids/$1"; } 2>/dev/null || return 1
	[ -n "$st" ] && [ "$(start_time "$pid")" = "$st" ] && echo "$pid"
}
only_child() { # the pid of a process's one child, once it has it
	local i c
	for i in {1..500}; do
		c=$(cat "/proc/$1/task/$1/children" 2>/dev/null) || return 1
		[ -n "$c" ] && { echo ${c%% *}; return; }
		sleep 0.02
	done
	return 1
}

# become PID NAME COMMAND...: turns this (sub)shell into a command in the namespaces of a node, cp, client or
# net; in a node's, it is in its part of cgroup v2, too, as all that runs on a real node is below its root.
# Without any child process of its own before that: `spawn` takes the first child for the command.
become() {
	local pid=$1 name=$2; shift 2
	[ ! -d "$UNIFIED/$CG/$name" ] || echo "$BASHPID" > "$UNIFIED/$CG/$name/cgroup.procs"
	exec "${SETSID[@]}" nsenter -t "$pid" -m -u -i -n -p --wd="$PWD" -- "$@"
}
SETSID=()
in_ns() { # in_ns NAME COMMAND...: runs it there
	local pid; pid=$(alive "ns-$1") || die "no namespace '$1' (is the cluster up?)"
	(become "$pid" "$@")
}
# spawn NS NAME COMMAND...: the same in the background, log and pid kept under $RUN.
spawn() {
	local ns=$1 name=$2 pid; shift 2
	pid=$(alive "ns-$ns") || die "no namespace '$ns'"
	(SETSID=(setsid); become "$pid" "$ns" "$@") </dev/null >>"$RUN/log/$name.log" 2>&1 &
	# nsenter stays outside as the parent: its child is the process meant.
	pid=$(only_child $!) || { tail -5 "$RUN/log/$name.log" >&2; die "$name did not start"; }
	record "$name" "$pid"
	disown
}
# stop NAME...: ends recorded processes, politely first.
stop() {
	local n pid i
	for n; do pid=$(alive "$n") && kill "$pid" 2>/dev/null; done
	for n; do
		for i in {1..50}; do alive "$n" >/dev/null || break; sleep 0.1; done
		pid=$(alive "$n") && kill -9 "$pid" 2>/dev/null
		rm -f "$RUN/pids/$n"
	done
	return 0
}
wait_for() { # wait_for SECONDS WHAT COMMAND...
	local t=$1 what=$2 end; shift 2; end=$((SECONDS + t))
	until "$@" >/dev/null 2>&1; do
		[ $SECONDS -lt $end ] || die "not there after $t s: $what"
		sleep 0.2
	done
}
kubectl() { in_ns client "$BIN/kubectl" --kubeconfig "$RUN/kubeconfig/admin" "$@"; }
