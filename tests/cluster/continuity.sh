#!/usr/bin/env bash
# Requests to Services under way from outside, from a node and from a pod, in both traffic policies, while
#   1. a Deployment rolls, 2. a node is drained, 3. the DaemonSet node-lb itself rolls (if it is the proxy).
# In the last part, every node's healthCheckNodePort is probed ten times a second besides.
# Prints a line for each load and each probed node; exit status 1 if any request or probe failed. Needs a cluster with its load balancer,
# and lab-tool of crate lb-tests (`cargo build`) in $LAB_TOOL, by default target/debug.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
[ -e "$RUN/env" ] || die "the cluster is not up"
. <(tr ' ' '\n' < "$RUN/env")
LAB_TOOL=$(realpath "${LAB_TOOL:-$HERE/../../target/debug/lab-tool}")
image=$(grep /e2e-test-images/agnhost: "$BIN/images.txt" | tail -1)
dir=$(mktemp -d)
bad=0
end() {
	local name
	for name in "${!inputs[@]}"; do kill "${pids[$name]}" 2>/dev/null; done
	[ -z "${PROBES_PID:-}" ] || kill "$PROBES_PID" 2>/dev/null
	kubectl uncordon node-2 >/dev/null 2>&1
	kubectl delete namespace continuity --wait=false >/dev/null 2>&1
	rm -rf "$dir"
}
declare -A inputs=() pids=()
trap end EXIT

kubectl create namespace continuity >/dev/null
pod() { # pod NAME EXTRA: a pod's spec, whose server serves on for ten seconds once it has to end
	cat <<-END
	{terminationGracePeriodSeconds: 12, $2
	 volumes: [{name: tools, hostPath: {path: "$(dirname "$LAB_TOOL")"}}],
	 containers: [{name: web, image: "$image", command: [sh, -c],
	   args: ['echo stay | /tools/lab-tool serve "{\"name\":\"\$HOSTNAME\",\"address\":\"::\",\"http\":[8080],\"tcp\":[],\"udp\":[]}"'],
	   volumeMounts: [{name: tools, mountPath: /tools, readOnly: true}],
	   readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1},
	   lifecycle: {preStop: {sleep: {seconds: 10}}}}]}
	END
}
service() { # service NAME POLICY
	cat <<-END
	---
	apiVersion: v1
	kind: Service
	metadata: {name: $1}
	spec:
	  {type: LoadBalancer, externalTrafficPolicy: $2, ipFamilyPolicy: PreferDualStack, selector: {app: web},
	   ports: [{port: 80, targetPort: 8080}]}
	END
}
kubectl -n continuity create -f - >/dev/null <<-END
	apiVersion: apps/v1
	kind: Deployment
	metadata: {name: web}
	spec:
	  replicas: $NODES
	  strategy: {rollingUpdate: {maxUnavailable: 0, maxSurge: 1}}
	  selector: {matchLabels: {app: web}}
	  template:
	    metadata: {labels: {app: web}}
	    spec: $(pod web '' | tr '\n' ' ')
	---
	apiVersion: v1
	kind: Pod
	metadata: {name: asking}
	spec: $(pod asking 'nodeName: node-1,' | tr '\n' ' ')
	$(service cluster Cluster)
	$(service local Local)
END
kubectl -n continuity rollout status deployment/web --timeout=90s >/dev/null
kubectl -n continuity wait --for=condition=Ready pod/asking --timeout=60s >/dev/null
field() { kubectl -n continuity get "$1" -o jsonpath="{$2}"; }
for i in {1..60}; do
	outside=$(field service/cluster '.status.loadBalancer.ingress[0].ip')
	outside_local=$(field service/local '.status.loadBalancer.ingress[0].ip')
	[ -z "$outside" ] || [ -z "$outside_local" ] || break
	sleep 0.5
done
inside=$(field service/cluster .spec.clusterIP)
pod_ip=$(field pod/asking .status.podIP)
for i in /proc/[0-9]*; do # the pod's network namespace, by its address
	nsenter --net="$i/ns/net" ip -br addr 2>/dev/null | grep -qF " $pod_ip/" && { pod_ns=$i/ns/net; break; }
done

load() { # load NAME ADDRESS PERSISTENT COMMAND...: starts one, with the command that leads to where it runs
	local name=$1 any=0.0.0.0:0 at=$2:80 persistent=$3 fd i; shift 3
	case $at in *:*:*) any='[::]:0' at="[${at%:80}]:80";; esac
	mkfifo "$dir/$name.in"
	"$@" "$LAB_TOOL" load "{\"request\":{\"protocol\":\"Http\",\"target\":\"$at\",\"source\":\"$any\",
		\"deadline\":{\"secs\":5,\"nanos\":0},\"payload\":0,\"held_for\":{\"secs\":0,\"nanos\":0},\"server_closes\":false},
		\"at_least\":0,\"workers\":2,\"persistent\":$persistent,\"pause\":{\"secs\":0,\"nanos\":20000000}}" \
		<"$dir/$name.in" >"$dir/$name.out" 2>"$dir/$name.err" &
	pids[$name]=$!
	exec {fd}>"$dir/$name.in"
	inputs[$name]=$fd
	for i in {1..100}; do grep -q ready "$dir/$name.out" && return; sleep 0.1; done
	die "load $name did not start: $(cat "$dir/$name.err")"
}
loads() { # loads PERSISTENT: all of them
	load "outside-cluster" "$outside" "$1" in_ns client
	load "outside-local" "$outside_local" "$1" in_ns client
	load "node" "$inside" "$1" in_ns node-1
	load "pod" "$inside" "$1" nsenter --net="$pod_ns"
}
report() { # report WHAT: ends the loads and says how they fared
	local name fd
	for name in "${!inputs[@]}"; do
		fd=${inputs[$name]}
		echo null >&"$fd"
		exec {fd}>&-
		wait "${pids[$name]}" || bad=1
		tail -1 "$dir/$name.out" | python3 -c '
import json, sys
r = json.load(sys.stdin)
print("%-4s %-30s %-16s %6d ok %3d failed, %d servers, %d connections ended by the server" % (
    "BAD" if r["failed"] or not r["ok"] else "ok", *sys.argv[1:], r["ok"], r["failed"], len(r["servers"]), r["reconnects"]))
for when, failure in r["failures"][:3]:
    print("    after %d s: %s" % (when["secs"], failure))
sys.exit(r["failed"] > 0 or r["ok"] == 0)' "$1" "$name" || bad=1
		rm "$dir/$name.in"
	done
	inputs=() pids=()
}

loads false
kubectl -n continuity rollout restart deployment/web >/dev/null
kubectl -n continuity rollout status deployment/web --timeout=180s >/dev/null
sleep 14 # until the last of the old ones has ended
report "a Deployment rolls"

loads false
kubectl drain node-2 --ignore-daemonsets --force --delete-emptydir-data --timeout=120s >/dev/null 2>&1 || bad=1
kubectl -n continuity rollout status deployment/web --timeout=120s >/dev/null
kubectl uncordon node-2 >/dev/null
report "a node is drained"

probe() { # probe: starts to probe the health of the Service with the policy Local on all nodes
	local port ip urls=()
	port=$(field service/local .spec.healthCheckNodePort)
	for ip in $(kubectl get nodes -o jsonpath='{.items[*].status.addresses[?(@.type=="InternalIP")].address}'); do
		case $ip in *:*) ip="[$ip]";; esac
		urls+=("http://$ip:$port/healthz")
	done
	coproc PROBES { in_ns client "$HERE/probes.py" "${urls[@]}"; }
	read -r -u "${PROBES[0]}" _
}
probed() { # probed: ends that, and says how it went
	local out=${PROBES[0]} in=${PROBES[1]} pid=$PROBES_PID
	exec {in}>&-
	cat <&"$out"
	wait "$pid" || bad=1
}

if kubectl -n kube-system get daemonset node-lb >/dev/null 2>&1; then
	probe
	loads true
	kubectl -n kube-system rollout restart daemonset/node-lb >/dev/null
	kubectl -n kube-system rollout status daemonset/node-lb --timeout=180s >/dev/null
	report "node-lb rolls (kept)"
	loads false
	kubectl -n kube-system rollout restart daemonset/node-lb >/dev/null
	kubectl -n kube-system rollout status daemonset/node-lb --timeout=180s >/dev/null
	report "node-lb rolls (new)"
	probed
fi
exit $bad
