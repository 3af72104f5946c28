#!/usr/bin/env bash
# proxy.sh start PROXY | stop: puts a Service implementation on every node, or takes it away.
# PROXY: node-lb, kube-proxy-nft, kube-proxy-iptables, or cmd:SHELL COMMAND. node-lb is the DaemonSet of
# deploy/, its image the archive $NODE_LB_IMAGE. A command runs on each node, in its namespaces and part of
# cgroup v2, from the directory where this is called, as long as the node lives, with KUBECONFIG (rights of
# kube-proxy), ADMIN_KUBECONFIG, NODE_NAME, NODE_IPS, NODE_CGROUP, POD_CIDRS (of all nodes) and SERVICE_CIDRS
# set. Its log: log/proxy-NODE.log in the run directory.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
[ -e "$RUN/env" ] || die "the cluster is not up"
. <(tr ' ' '\n' < "$RUN/env")
nodes=$(seq -f 'node-%g' "$NODES")

# The overlay that fits deploy/base to this cluster: where the API server is; and each node's part of
# cgroup v2, whose root they all share here.
overlay() {
	local host=${API#https://}
	host=${host%:*} host=${host#[} host=${host%]}
	mkdir -p "$RUN/node-lb"
	cat > "$RUN/node-lb/kustomization.yaml" <<-END
	apiVersion: kustomize.config.k8s.io/v1beta1
	kind: Kustomization
	resources: [$(realpath --relative-to "$RUN/node-lb" "$HERE/../../deploy/base")]
	patches:
	- target: {kind: ConfigMap, name: node-lb-api-server}
	  patch: |
	    - {op: replace, path: /data/KUBERNETES_SERVICE_HOST, value: "$host"}
	- target: {kind: DaemonSet, name: node-lb}
	  patch: |
	    - op: add
	      path: /spec/template/spec/containers/0/args/-
	      value: --cgroup-path=$UNIFIED/$CG/\$(NODE_NAME)
	END
	# On Flannel, pods are told from other sources by the pods' networks.
	[ "$CNI" != flannel ] || cat >> "$RUN/node-lb/kustomization.yaml" <<-END
	- target: {kind: ConfigMap, name: node-lb}
	  patch: |
	    - {op: replace, path: /data/config.yaml, value: "cluster-cidr: $ALL_PODS"}
	END
}
daemonset() { # daemonset apply|delete
	kubectl kustomize "$RUN/node-lb" | kubectl "$1" -f - >> "$RUN/log/proxy.log"
}

case ${1:-} in
start)
	proxy=${2:?which proxy}
	for n in $nodes; do alive "proxy-$n" >/dev/null && die "a proxy runs already: proxy.sh stop first"; done
	if [ "$proxy" = node-lb ]; then
		for n in $nodes; do
			in_ns "$n" "$BIN/ctr" -n k8s.io images import --local "${NODE_LB_IMAGE:?the archive of the image}" >> "$RUN/log/images-$n.log" 2>&1
		done
		overlay
		daemonset apply
		echo "$proxy" > "$RUN/proxy"
		exit
	fi
	for n in $nodes; do
		case $proxy in
		kube-proxy-*)
			mode=${proxy#kube-proxy-}; [ "$mode" != nft ] || mode=nftables
			# The size of the connection table is the whole machine's: left alone.
			set -- "$BIN/kube-proxy" --proxy-mode="$mode" --kubeconfig="$RUN/kubeconfig/proxy" \
				--hostname-override="$n" --cluster-cidr="$ALL_PODS" \
				--conntrack-max-per-core=0 --conntrack-min=0;;
		cmd:*) set -- bash -c "${proxy#cmd:}";;
		*) die "unknown proxy $proxy";;
		esac
		i=$((10 + ${n#node-}))
		ips="172.30.77.$i,fd00:172:30:77::$i"
		case $FAMILIES in ipv4) ips=${ips%,*};; ipv6) ips=${ips#*,};; esac
		spawn "$n" "proxy-$n" env PATH="$BIN:$PATH" KUBECONFIG="$RUN/kubeconfig/proxy" \
			ADMIN_KUBECONFIG="$RUN/kubeconfig/admin" NODE_NAME="$n" NODE_IPS="$ips" \
			POD_CIDRS="$ALL_PODS" SERVICE_CIDRS="$SERVICES" NODE_CGROUP="$UNIFIED/$CG/$n" "$@"
	done
	echo "$proxy" > "$RUN/proxy";;
stop)
	proxy=$(cat "$RUN/proxy" 2>/dev/null || :)
	if [ "$proxy" = node-lb ]; then
		daemonset delete
		# It leaves its work in the kernel unless asked; another proxy must not meet it.
		for n in $nodes; do in_ns "$n" "$BIN/ctr" -n k8s.io run --rm --privileged --net-host \
			--mount type=bind,src=/sys,dst=/sys,options=rbind:rw localhost/node-lb:0.1.0 cleanup \
			/usr/local/bin/node-lb cleanup >> "$RUN/log/proxy.log" 2>&1; done
		rm -f "$RUN/proxy"
		exit
	fi
	stop $(for n in $nodes; do echo "proxy-$n"; done)
	# kube-proxy leaves its rules behind unless asked; another proxy must not meet them.
	case $proxy in kube-proxy-*) for n in $nodes; do in_ns "$n" "$BIN/kube-proxy" --cleanup >>"$RUN/log/proxy-$n.log" 2>&1 || :; done;; esac
	rm -f "$RUN/proxy";;
*) die "usage: proxy.sh start PROXY | stop";;
esac
