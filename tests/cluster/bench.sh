#!/usr/bin/env bash
# bench.sh [SERVICES...]: node-lb and kube-proxy (nftables) in turn on one node of a cluster made for it, before
# the same API server with so many Services (default 1000 10000) of ten endpoints each: how long from the
# start until all are programmed, from an endpoint's change until a connection follows it, and what the
# process takes. NODE_LB is node-lb's program, default target/release/node-lb. Prints a table.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
NODE_LB=$(realpath "${NODE_LB:-$HERE/../../target/release/node-lb}")
[ ! -e "$RUN" ] || die "$RUN is there: run down.sh first"
trap '"$HERE/down.sh" >/dev/null 2>&1' EXIT
trap 'exit 1' INT TERM
"$HERE/up.sh" --nodes 1 --families ipv4 --proxy none --no-dns --no-lb >&2
# Two servers with ten addresses each: what Services lead to.
for i in {200..219}; do in_ns cp ip addr add "172.30.77.$i/24" dev eth0; done
spawn cp servers python3 "$HERE/bench.py" serve
for n in ${*:-1000 10000}; do
	in_ns node-1 env PATH="$BIN:$PATH" NODE_LB="$NODE_LB" CGROUP="$UNIFIED/$CG/node-1" \
		python3 "$HERE/bench.py" measure "$RUN/kubeconfig/admin" "$RUN/kubeconfig/proxy" "$n" "$RUN/log"
done
