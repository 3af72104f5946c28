#!/usr/bin/env bash
# Brings a small Kubernetes cluster up on this machine, in namespaces of its own.
set -Eeuo pipefail
. "$(dirname "$0")/lib.sh"
usage() {
	cat <<-END
	usage: up.sh [--nodes N] [--families dual|ipv4|ipv6] [--cni ptp|flannel] [--proxy PROXY] [--no-dns] [--no-lb]
	  --nodes N     number of nodes, each with kubelet and containerd (default 3)
	  --families F  address families of nodes, pods and services (default dual, IPv4 first)
	  --cni C       the pods' network (default ptp: routes between the nodes); flannel needs
	                build.sh --cni flannel
	  --proxy P     who implements Services on each node (default kube-proxy-nft):
	                none | node-lb | kube-proxy-nft | kube-proxy-iptables |
	                cmd:SHELL COMMAND (run in each node's namespaces, see proxy.sh)
	  --no-dns      without CoreDNS
	  --no-lb       without the controller that gives LoadBalancer services an address
	END
	exit "${1:-2}"
}
NODES=3 FAMILIES=dual CNI=ptp PROXY=kube-proxy-nft DNS=yes LB=yes
while [ $# -gt 0 ]; do
	case $1 in
	--nodes) NODES=$2; shift;;
	--families) FAMILIES=$2; shift;;
	--cni) CNI=$2; shift;;
	--proxy) PROXY=$2; shift;;
	--no-dns) DNS=;;
	--no-lb) LB=;;
	-h|--help) usage 0;;
	*) usage;;
	esac
	shift
done
[[ $NODES =~ ^[1-9][0-9]?$ ]] || usage
case $FAMILIES in dual|ipv4|ipv6) ;; *) usage;; esac
case $CNI in ptp|flannel) ;; *) usage;; esac
case $PROXY in none|node-lb|kube-proxy-nft|kube-proxy-iptables|cmd:?*) ;; *) usage;; esac
[ "$(id -u)" = 0 ] || die "needs root"
[ -e "$BIN/images.tar" ] || die "run build.sh first"
[ "$CNI" != flannel ] || [ -x "$BIN/flanneld" ] || die "run build.sh --cni flannel first"
[ ! -e "$RUN" ] || die "$RUN is there: run down.sh first"

fail() {
	trap - ERR EXIT
	[ -z "${NODE_LB_CLUSTER_KEEP:-}" ] || { echo "up.sh: failed, left as it is" >&2; exit 1; }
	echo "up.sh: failed, taking down" >&2
	"$HERE/down.sh" --keep-logs >&2
	exit 1
}
trap fail EXIT
trap 'exit 1' INT TERM

# Addresses: none of these leave the namespaces. Host parts: cp 2, node-I 10+I. The client is on
# the same wire with a prefix of its own: e2e tests tell outside from inside by the prefix (/16 and /64).
fam() { # fam IPV4 IPV6: the ones of this cluster, comma-separated
	case $FAMILIES in ipv4) echo "$1";; ipv6) echo "$2";; dual) echo "$1,$2";; esac
}
first() { echo "${1%%,*}"; }
LB_POOL=$(fam 172.30.78.0/24 fd00:172:30:78::/112)
CLIENT=$(fam 172.29.77.3 fd00:172:29:77::3)
addr() { fam "172.30.77.$1" "fd00:172:30:77::$1"; }
pods() { fam "10.244.$1.0/24" "fd00:10:244:$1::/64"; }
ALL_PODS=$(fam 10.244.0.0/16 fd00:10:244::/48)
SERVICES=$(fam 10.96.0.0/16 fd00:10:96::/112)
DNS_IP=$(first "$(fam 10.96.0.10 fd00:10:96::a)")
CP=$(first "$(addr 2)")
case $CP in *:*) API="https://[$CP]:6443";; *) API=https://$CP:6443;; esac
nodes() { seq -f 'node-%g' "$NODES"; }

mkdir -p "$RUN"/{pids,log,pki,kubeconfig}
chmod 700 "$RUN"
cat > "$RUN/env" <<-END
	NODES=$NODES FAMILIES=$FAMILIES CNI=$CNI
	ALL_PODS=$ALL_PODS SERVICES=$SERVICES API=$API
END

# --- Namespaces, and the node network: one bridge, in a namespace of its own.
for h in $CGROUPS; do
	mkdir -p "$h/$CG"
	[ ! -e "$h/$CG/cpuset.cpus" ] || { cat "$h/cpuset.cpus" > "$h/$CG/cpuset.cpus"; cat "$h/cpuset.mems" > "$h/$CG/cpuset.mems"; }
	for n in $(nodes); do
		mkdir -p "$h/$CG/$n"
		[ ! -e "$h/$CG/$n/cpuset.cpus" ] || { cat "$h/cpuset.cpus" > "$h/$CG/$n/cpuset.cpus"; cat "$h/cpuset.mems" > "$h/$CG/$n/cpuset.mems"; }
	done
done
new_ns() { # new_ns NAME KIND
	mkdir -p "$RUN/$1"
	(
		# In cgroup2 all of a node is one group, for programs attached to such groups.
		[ "$2" != node ] || [ -z "$UNIFIED" ] || echo "$BASHPID" > "$UNIFIED/$CG/$1/cgroup.procs"
		exec setsid unshare --mount --uts --ipc --net --pid --fork --kill-child --mount-proc \
			--propagation private "$HERE/ns-init.sh" "$RUN" "$1" "$2" </dev/null >"$RUN/log/ns-$1.log" 2>&1
	) &
	only_child $! > "$RUN/$1/pid" || die "namespace $1: $(cat "$RUN/log/ns-$1.log")"
	record "ns-$1" "$(cat "$RUN/$1/pid")"
	disown
}
new_ns net plain
for n in cp client; do new_ns $n plain; done
for n in $(nodes); do new_ns "$n" node; done
for n in net cp client $(nodes); do wait_for 10 "namespace $n" test -e "$RUN/$n/ready"; done

in_net() { nsenter -t "$(alive ns-net)" -n "$@"; }
in_net sysctl -qw net.ipv6.conf.default.disable_ipv6=1
in_ns net python3 "$HERE/xdp_pass.py" /sys/fs/bpf/pass
in_net ip link add br0 type bridge
in_net ip link set br0 up
in_net sysctl -qw net.bridge.bridge-nf-call-iptables=0 net.bridge.bridge-nf-call-ip6tables=0 2>/dev/null || :
# The gateway of the nodes' default routes, host part 1: a node needs such a route to send to a
# ClusterIP at all. What is not rewritten on the node ends here, as unreachable; or silently, if
# for a LoadBalancer address that nobody has: that is what e2e tests take for closed.
in_net sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.br0.disable_ipv6=0 net.ipv6.conf.all.forwarding=1
for a in $(addr 1 | tr , ' '); do
	case $a in *:*) in_net ip addr add "$a/64" dev br0 nodad;; *) in_net ip addr add "$a/24" dev br0;; esac
done
for a in ${LB_POOL//,/ }; do in_net ip route add blackhole "$a"; done
plug() { # plug NAME ADDRESSES: joins a namespace to the bridge
	local a pid; pid=$(alive "ns-$1")
	in_net ip link add "v-$1" type veth peer name eth0 netns "$pid"
	in_net ip link set "v-$1" master br0 up
	nsenter -t "$pid" -n ip link set eth0 up
	# As a wire would have it, for XDP programs on eth0: checksums complete in what is sent; and an
	# XDP program at the far end, without which a veth drops or delays what comes by XDP_TX.
	nsenter -t "$pid" -n python3 "$HERE/tx_checksum_off.py" eth0
	in_ns net ip link set dev "v-$1" xdpdrv pinned /sys/fs/bpf/pass
	for a in ${2//,/ }; do
		case $a in
		*:*) nsenter -t "$pid" -n ip addr add "$a/64" dev eth0 nodad;;
		*) nsenter -t "$pid" -n ip addr add "$a/24" dev eth0;;
		esac
	done
	local other=$CLIENT; [ "$1" != client ] || other=$(addr 0)
	for a in ${other//,/ }; do
		case $a in
		*:*) nsenter -t "$pid" -n ip route add "${a%:*}:/64" dev eth0;;
		*) nsenter -t "$pid" -n ip route add "${a%.*}.0/24" dev eth0;;
		esac
	done
}
plug cp "$(addr 2)"
plug client "$CLIENT"
for i in $(seq "$NODES"); do plug "node-$i" "$(addr $((10 + i)))"; done
# Equal-cost paths to a LoadBalancer address (lb.py) are chosen per connection.
nsenter -t "$(alive ns-client)" -n sysctl -qw net.ipv4.fib_multipath_hash_policy=1 net.ipv6.fib_multipath_hash_policy=1
# Each node, and the API server, knows the way to all other nodes' pods; between nodes, Flannel may be that way.
# The client, a host outside the cluster, does not.
for n in cp client $(nodes); do
	for a in $(addr 1 | tr , ' '); do nsenter -t "$(alive "ns-$n")" -n ip route add default via "$a"; done
	[ "$n" != client ] || continue
	[ "$CNI" = ptp ] || [ "$n" = cp ] || continue
	for i in $(seq "$NODES"); do
		[ "$n" = "node-$i" ] && continue
		paste <(pods "$i" | tr , '\n') <(addr $((10 + i)) | tr , '\n') | while read -r net via; do
			nsenter -t "$(alive "ns-$n")" -n ip route add "$net" via "$via"
		done
	done
done
# What pods send out of the cluster has their node's address there, by conntrack as with most CNIs. Flannel sees to
# that itself.
[ "$CNI" != ptp ] || for i in $(seq "$NODES"); do
	nsenter -t "$(alive "ns-node-$i")" -n nft -f - <<-END
	table inet cni-masquerade {
	  chain postrouting {
	    type nat hook postrouting priority srcnat
	    ip saddr 10.244.0.0/16 ip daddr != {10.244.0.0/16, 172.30.77.0/24} masquerade
	    ip6 saddr fd00:10:244::/48 ip6 daddr != {fd00:10:244::/48, fd00:172:30:77::/64} masquerade
	  }
	}
	END
done
say "namespaces and node network"

# --- Keys, tokens and one kubeconfig per user. Nothing here is secret: it dies with the cluster.
cd "$RUN/pki"
sans="DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local,DNS:localhost,IP:127.0.0.1"
for a in $(addr 2 | tr , ' ') $(fam 10.96.0.1 fd00:10:96::1 | tr , ' '); do sans="$sans,IP:$a"; done
{
	openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.crt -days 30 -subj /CN=node-lb-test-ca
	openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout api.key -out api.csr -subj /CN=kube-apiserver
	openssl x509 -req -in api.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out api.crt -days 30 -extfile <(echo "subjectAltName=$sans")
	openssl genrsa -out sa.key 2048
	openssl rsa -in sa.key -pubout -out sa.pub
} >"$RUN/log/openssl.log" 2>&1
user() { # user NAME K8S-USER [GROUP]
	local token; token=$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n')
	echo "$token,$2,$2${3:+,$3}" >> tokens.csv
	cat > "$RUN/kubeconfig/$1" <<-END
	apiVersion: v1
	kind: Config
	current-context: c
	contexts: [{name: c, context: {cluster: c, user: u}}]
	clusters: [{name: c, cluster: {server: "$API", certificate-authority-data: "$(base64 -w0 ca.crt)"}}]
	users: [{name: u, user: {token: "$token"}}]
	END
}
user admin admin system:masters
user kcm system:kube-controller-manager
user scheduler system:kube-scheduler
user proxy system:kube-proxy
[ "$CNI" != flannel ] || user flannel flannel
for n in $(nodes); do user "kubelet-$n" "system:node:$n" system:nodes; done
cd "$HERE"

# --- Control plane: plain processes in cp. etcd need not survive anything.
spawn cp etcd "$BIN/etcd" --data-dir "$RUN/cp/etcd" --unsafe-no-fsync --log-level warn \
	--listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
	--listen-peer-urls http://127.0.0.1:2380
spawn cp kube-apiserver "$BIN/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 \
	--advertise-address="$CP" --secure-port=6443 --service-cluster-ip-range="$SERVICES" \
	--tls-cert-file="$RUN/pki/api.crt" --tls-private-key-file="$RUN/pki/api.key" \
	--service-account-issuer=https://kubernetes.default.svc.cluster.local \
	--service-account-key-file="$RUN/pki/sa.pub" --service-account-signing-key-file="$RUN/pki/sa.key" \
	--token-auth-file="$RUN/pki/tokens.csv" --authorization-mode=Node,RBAC --allow-privileged=true \
	--kubelet-preferred-address-types=InternalIP --enable-aggregator-routing=true

# --- The pods' network.
# pods_by_ptp NODE: a veth pair to each pod, with no bridge.
pods_by_ptp() {
	local n=$1 i ranges routes
	i=${n#node-}
	ranges=$(for p in $(pods "$i" | tr , ' '); do printf '[{"subnet": "%s"}],' "$p"; done)
	routes=$(fam '{"dst": "0.0.0.0/0"}' '{"dst": "::/0"}')
	cat > "$RUN/$n/lib/cni/net.d/10-pods.conflist" <<-END
	{"cniVersion": "1.0.0", "name": "pods", "plugins": [
	  {"type": "ptp", "mtu": 1500, "ipMasq": false,
	   "ipam": {"type": "host-local", "dataDir": "/run/cni-ipam", "ranges": [${ranges%,}], "routes": [$routes]}},
	  {"type": "portmap", "capabilities": {"portMappings": true}, "backend": "nftables"}]}
	END
}
. "$HERE/flannel.sh"

# --- containerd on each node, with the images.
for n in $(nodes); do
	cat > "$RUN/$n/containerd.toml" <<-END
	version = 3
	root = "/var/lib/containerd"
	state = "/run/containerd"
	disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.btrfs",
	  "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.blockfile",
	  "io.containerd.snapshotter.v1.erofs", "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp"]
	[grpc]
	  address = "/run/containerd/containerd.sock"
	[plugins."io.containerd.cri.v1.images"]
	  snapshotter = "overlayfs"
	  [plugins."io.containerd.cri.v1.images".pinned_images]
	    sandbox = "$(cat "$BIN/pause-image.txt")"
	[plugins."io.containerd.cri.v1.runtime"]
	  # Where root lacks CAP_SYS_RESOURCE, a pod's score cannot be put below that of its parent.
	  restrict_oom_score_adj = true
	  [plugins."io.containerd.cri.v1.runtime".cni]
	    bin_dirs = ["$BIN"]
	    conf_dir = "/var/lib/cni/net.d"
	  [plugins."io.containerd.cri.v1.runtime".containerd]
	    default_runtime_name = "runc"
	    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
	      runtime_type = "io.containerd.runc.v2"
	      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
	        BinaryName = "$BIN/runc"
	        SystemdCgroup = false
	END
	mkdir -p "$RUN/$n/lib/cni/net.d"
	[ "$CNI" != ptp ] || pods_by_ptp "$n"
	spawn "$n" "containerd-$n" env PATH="$BIN:$PATH" "$BIN/containerd" --config "$RUN/$n/containerd.toml" --log-level warn
done
load_images() {
	wait_for 30 "containerd on $1" in_ns "$1" "$BIN/ctr" version
	in_ns "$1" "$BIN/ctr" -n k8s.io images import --local "$BIN/images.tar" >"$RUN/log/images-$1.log" 2>&1
}
loads=()
for n in $(nodes); do load_images "$n" & loads+=($!); done

wait_for 60 "API server" kubectl get --raw /readyz
say "API server"
spawn cp kube-controller-manager "$BIN/kube-controller-manager" --kubeconfig="$RUN/kubeconfig/kcm" \
	--service-account-private-key-file="$RUN/pki/sa.key" --root-ca-file="$RUN/pki/ca.crt" \
	--use-service-account-credentials --leader-elect=false --service-cluster-ip-range="$SERVICES"
spawn cp kube-scheduler "$BIN/kube-scheduler" --kubeconfig="$RUN/kubeconfig/scheduler" --leader-elect=false

# The nodes are made here, not by their kubelets: so that the pod ranges are those routed above. They have the annotation
# that kubelet gives them, because flanneld ends on a node without any.
for i in $(seq "$NODES"); do
	cat <<-END
	---
	apiVersion: v1
	kind: Node
	metadata:
	  name: node-$i
	  annotations: {volumes.kubernetes.io/controller-managed-attach-detach: "true"}
	  labels: {kubernetes.io/hostname: node-$i, topology.kubernetes.io/zone: zone-$(((i - 1) % 3 + 1)), topology.kubernetes.io/region: here}
	spec:
	  podCIDR: $(first "$(pods "$i")")
	  podCIDRs: [$(pods "$i" | sed 's/[^,]*/"&"/g')]
	END
done > "$RUN/nodes.yaml"
kubectl create -f - < "$RUN/nodes.yaml" > "$RUN/log/nodes.log"
[ "$CNI" != flannel ] || flannel_up
for p in "${loads[@]}"; do wait "$p" || die "images not loaded, see $RUN/log"; done
say "images on all nodes"
for i in $(seq "$NODES"); do
	n=node-$i
	cat > "$RUN/$n/kubelet.yaml" <<-END
	apiVersion: kubelet.config.k8s.io/v1beta1
	kind: KubeletConfiguration
	authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
	authorization: {mode: AlwaysAllow}
	containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
	cgroupDriver: cgroupfs
	cgroupRoot: /$CG/$n
	failCgroupV1: false
	failSwapOn: false
	clusterDomain: cluster.local
	clusterDNS: ["$DNS_IP"]
	resolvConf: /run/resolv.conf
	evictionHard: {imagefs.available: "0%", nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.inodesFree: "0%", memory.available: "1Mi"}
	imageGCHighThresholdPercent: 100
	imageGCLowThresholdPercent: 99
	maxPods: 200
	serializeImagePulls: false
	nodeStatusUpdateFrequency: 5s
	END
	spawn "$n" "kubelet-$n" env PATH="$BIN:$PATH" "$BIN/kubelet" --config="$RUN/$n/kubelet.yaml" \
		--kubeconfig="$RUN/kubeconfig/kubelet-$n" --hostname-override="$n" --node-ip="$(addr $((10 + i)))"
done
[ "$PROXY" = none ] || "$HERE/proxy.sh" start "$PROXY"
if [ -n "$LB" ]; then
	spawn client lb python3 "$HERE/lb.py" "$RUN/kubeconfig/admin" "$LB_POOL"
fi
if [ -n "$DNS" ]; then
	# CoreDNS reaches the API server itself, not through a Service: it runs without a proxy too.
	sed "s|@API@|$CP|; s|@DNS_IP@|$DNS_IP|; s|@POLICY@|$([ "$FAMILIES" = dual ] && echo PreferDualStack || echo SingleStack)|" \
		"$HERE/coredns.yaml" > "$RUN/coredns.yaml"
	kubectl create -f - < "$RUN/coredns.yaml" > "$RUN/log/coredns.log"
fi
wait_for 60 "ready nodes" kubectl wait --for=condition=Ready node --all --timeout=1s
say "nodes ready"
wait_for 30 "service account" kubectl -n default get serviceaccount default
[ -z "$DNS" ] || kubectl -n kube-system rollout status deployment/coredns --timeout=60s >/dev/null
[ "$PROXY" != node-lb ] || kubectl -n kube-system rollout status daemonset/node-lb --timeout=60s >/dev/null
say "up: ./in.sh client kubectl get nodes"
trap - EXIT
