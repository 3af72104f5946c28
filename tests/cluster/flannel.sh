# Flannel as the pods' network; up.sh sources this. flanneld runs on each node as its DaemonSet has it run: it gets
# the node's pod ranges from the Node object, makes the VXLAN devices and the routes over them, and masquerades.

# flannel_up: starts it on all nodes and, with what it then says, configures the pods' devices.
flannel_up() {
	local n
	cat > "$RUN/net-conf.json" <<-END
	{"Network": "10.244.0.0/16", "IPv6Network": "fd00:10:244::/48", "Backend": {"Type": "vxlan"},
	 "EnableIPv4": $([ "$FAMILIES" = ipv6 ] && echo false || echo true),
	 "EnableIPv6": $([ "$FAMILIES" = ipv4 ] && echo false || echo true)}
	END
	kubectl create -f - >> "$RUN/log/nodes.log" <<-END
	apiVersion: rbac.authorization.k8s.io/v1
	kind: ClusterRole
	metadata: {name: flannel}
	rules:
	- {apiGroups: [""], resources: [nodes], verbs: [get, list, watch]}
	- {apiGroups: [""], resources: [nodes/status], verbs: [patch]}
	---
	apiVersion: rbac.authorization.k8s.io/v1
	kind: ClusterRoleBinding
	metadata: {name: flannel}
	roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: flannel}
	subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: flannel}]
	END
	for n in $(nodes); do
		spawn "$n" "flanneld-$n" env NODE_NAME="$n" "$BIN/flanneld" --kube-subnet-mgr \
			--kubeconfig-file="$RUN/kubeconfig/flannel" --net-config-path="$RUN/net-conf.json" --ip-masq
	done
	for n in $(nodes); do
		wait_for 30 "Flannel's subnet on $n" in_ns "$n" test -s /run/flannel/subnet.env
		pods_by_flannel "$n"
	done
	say "Flannel"
}

# pods_by_flannel NODE: a bridge with the pods' devices, configured as Flannel's own plugin would do it: by
# subnet.env, and with the settings that Flannel's manifest delegates.
pods_by_flannel() {
	local FLANNEL_NETWORK='' FLANNEL_SUBNET='' FLANNEL_IPV6_NETWORK='' FLANNEL_IPV6_SUBNET='' FLANNEL_MTU FLANNEL_IPMASQ
	local subnet network masquerade=true ranges='' routes=''
	. <(in_ns "$1" cat /run/flannel/subnet.env)
	[ "$FLANNEL_IPMASQ" = false ] || masquerade=false # whoever does not, the other has to
	for subnet in $FLANNEL_SUBNET $FLANNEL_IPV6_SUBNET; do
		# What is given is the bridge's address in the node's range, the first.
		subnet=${subnet/.1\//.0/} subnet=${subnet/::1\//::/}
		ranges+="${ranges:+,}[{\"subnet\": \"$subnet\"}]"
	done
	for network in $FLANNEL_NETWORK $FLANNEL_IPV6_NETWORK; do routes+="${routes:+,}{\"dst\": \"$network\"}"; done
	cat > "$RUN/$1/lib/cni/net.d/10-flannel.conflist" <<-END
	{"cniVersion": "1.0.0", "name": "cbr0", "plugins": [
	  {"type": "bridge", "bridge": "cni0", "mtu": $FLANNEL_MTU, "ipMasq": $masquerade, "isGateway": true,
	   "isDefaultGateway": true, "hairpinMode": true,
	   "ipam": {"type": "host-local", "dataDir": "/run/cni-ipam", "ranges": [$ranges], "routes": [$routes]}},
	  {"type": "portmap", "capabilities": {"portMappings": true}, "backend": "nftables"}]}
	END
}
