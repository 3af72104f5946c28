#!/usr/bin/env bash
# What runs on the cluster: its nodes, who implements Services on each, and how that one is doing.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
[ -e "$RUN/env" ] || { echo "no cluster is up"; exit 1; }
. <(tr ' ' '\n' < "$RUN/env")
echo "$NODES nodes, $FAMILIES; Services by $(cat "$RUN/proxy" 2>/dev/null || echo nobody); files in $RUN"
kubectl get nodes -o wide
kubectl get pods --all-namespaces -o wide
for i in $(seq "$NODES"); do
	printf 'node-%s healthz: ' "$i"
	in_ns "node-$i" curl -sg -m 2 http://127.0.0.1:10256/healthz || echo "no answer"
	echo
done
