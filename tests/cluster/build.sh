#!/usr/bin/env bash
# Builds everything the cluster needs into $NODE_LB_CLUSTER_BIN: the Kubernetes programs and
# the e2e tests, containerd, runc, the network plugins, CoreDNS, and one archive of images.
# What did not change since the last run is not built again.
#
#   --control-plane  only etcd, kube-apiserver (and one of an older minor version), kube-controller-manager,
#                    kube-proxy, kubectl, Helm and WireGuard; needs only Go
#   --cni flannel    all, and Flannel, for `up.sh --cni flannel`
#   --check          builds nothing; exit status 1 if there is something to build
set -euo pipefail
. "$(dirname "$0")/lib.sh"
ALL=yes CHECK= FLANNEL=
while [ $# -gt 0 ]; do
	case $1 in
	--control-plane) ALL=;;
	--cni) [ "${2:-}" = flannel ] || die "--cni takes flannel"; FLANNEL=yes; shift;;
	--check) CHECK=yes;;
	*) die "there is no option $1";;
	esac
	shift
done
needs() { for c; do command -v "$c" >/dev/null || die "needs $c"; done; }
[ -n "$CHECK" ] || needs go
[ -n "$CHECK" ] || [ -z "$ALL" ] || needs gcc pkg-config mmdebstrap python3
[ -n "$CHECK" ] || [ -z "$ALL" ] || pkg-config --exists libseccomp || die "needs libseccomp-dev"
mkdir -p "$BIN"
export GOFLAGS=-mod=readonly CGO_ENABLED=0

# step NAME FILES...: runs build_NAME, unless it ran before with the same text and files.
step() {
	local name=$1 sum; shift
	sum=$( (declare -f "build_$name"; cat /dev/null "$@") | sha256sum)
	[ "$(cat "$BIN/.$name" 2>/dev/null)" != "$sum" ] || return 0
	[ -z "$CHECK" ] || exit 1
	"build_$name"
	echo "$sum" > "$BIN/.$name"
	say "built $name"
}

# kubernetes_version: what the Kubernetes programs are to say of themselves, as flags for the linker.
kubernetes_version() {
	local v minor p=k8s.io/component-base/version
	v=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
	minor=${v#v1.}; minor=${minor%%.*}
	echo "-s -w -X $p.gitVersion=$v -X $p.gitMajor=1 -X $p.gitMinor=$minor"
}
# kubernetes_tools PACKAGE...: builds these into $BIN.
kubernetes_tools() {
	local ld pkg out; ld=$(kubernetes_version)
	for pkg; do
		case $pkg in */etcd/server/v3) out=etcd;; *) out=${pkg##*/};; esac
		go build -trimpath -ldflags "$ld" -o "$BIN/$out" "$pkg"
		say "$out"
	done
}

build_control_plane() {
	cd "$HERE/mods/kubernetes"
	kubernetes_tools go.etcd.io/etcd/server/v3 \
		k8s.io/kubernetes/cmd/{kube-apiserver,kube-controller-manager,kube-proxy,kubectl}
}

build_older() {
	cd "$HERE/mods/older"
	go build -trimpath -ldflags "$(kubernetes_version)" -o "$BIN/kube-apiserver-older" \
		"$(go list -f '{{.ImportPath}}' tool)"
}

build_kubernetes() {
	cd "$HERE/mods/kubernetes"
	local of_control_plane='/etcd/server/v3$|/(kube-apiserver|kube-controller-manager|kube-proxy|kubectl)$'
	kubernetes_tools $(go list -f '{{.ImportPath}}' tool | grep -Ev "$of_control_plane")
	go test -c -trimpath -ldflags "$(kubernetes_version)" -o "$BIN/e2e.test" k8s.io/kubernetes/test/e2e
	install -m 644 "$(go list -m -f '{{.Dir}}' k8s.io/kubernetes)"/test/images/agnhost/porter/localhost.{crt,key} "$BIN/"
}

# Renders deploy/chart in tests.
build_helm() {
	cd "$HERE/mods/helm"
	go build -trimpath -ldflags '-s -w' -o "$BIN/" "$(go list -f '{{.ImportPath}}' tool)"
}

# In user space: a tunnel of layer 3 on any kernel.
build_wireguard() {
	cd "$HERE/mods/wireguard"
	go build -trimpath -ldflags '-s -w' -o "$BIN/" "$(go list -f '{{.ImportPath}}' tool)"
}

build_runtime() {
	cd "$HERE/mods/runtime"
	local pkg
	for pkg in $(go list -f '{{.ImportPath}}' tool) ./pause; do
		case $pkg in
		# runc enters namespaces in C before Go starts; kubelet wants seccomp for each sandbox.
		*/runc) CGO_ENABLED=1 go build -trimpath -tags seccomp,netgo,osusergo -ldflags '-s -w -extldflags -static' -o "$BIN/" "$pkg";;
		*) go build -trimpath -ldflags '-s -w' -o "$BIN/" "$pkg";;
		esac
	done
}

build_dns() {
	cd "$HERE/mods/dns"
	go build -trimpath -ldflags '-s -w' -o "$BIN/" "$(go list -f '{{.ImportPath}}' tool)"
}

# flanneld, and the plugin that Flannel's own plugin has make the pods' devices.
build_flannel() {
	cd "$HERE/mods/flannel"
	# Its back end UDP, which nobody chooses here, has a part in C.
	CGO_ENABLED=1 go build -trimpath -tags netgo,osusergo -ldflags "-s -w -extldflags -static -X github.com/flannel-io/flannel/pkg/version.Version=$(
		go list -m -f '{{.Version}}' github.com/flannel-io/flannel)" -o "$BIN/flanneld" github.com/flannel-io/flannel
	go build -trimpath -ldflags '-s -w' -o "$BIN/" github.com/containernetworking/plugins/plugins/main/bridge
}

# The file system under agnhost: the tools that the tests run in its shell, and busybox for all
# other commands (upstream's image is Alpine). wget is GNU's, made to try once as busybox's does:
# the one in Debian's busybox crashes on -T. merged-usr: else much Perl comes in to do the same.
build_rootfs() {
	cd "$BIN"
	mmdebstrap --quiet --variant=minbase --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
		--include=usr-is-merged,busybox,wget,curl,bind9-dnsutils,netcat-openbsd,iproute2,iperf,bash,iptables,nftables,conntrack,procps \
		--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
		--dpkgopt='path-exclude=/usr/share/locale/*' --skip=output/dev \
		--customize-hook='chroot "$1" busybox --install -s 2>/dev/null || :' \
		--customize-hook='echo "tries = 1" >> "$1"/etc/wgetrc' \
		--customize-hook='chroot "$1" useradd -u 1000 user-defined-in-image' \
		"$(. /etc/os-release; echo "$VERSION_CODENAME")" layer-tools.tar >rootfs.log 2>&1 || { cat rootfs.log >&2; return 1; }
}

build_images() {
	cd "$BIN"
	./e2e.test --list-images > images.txt
	python3 "$HERE/images.py" "$BIN" images.txt images.tar
}

step control_plane "$HERE"/mods/kubernetes/go.{mod,sum}
step older "$HERE"/mods/older/go.{mod,sum}
step helm "$HERE"/mods/helm/go.{mod,sum}
step wireguard "$HERE"/mods/wireguard/go.{mod,sum}
if [ -n "$ALL" ]; then
	step kubernetes "$HERE"/mods/kubernetes/go.{mod,sum}
	step runtime "$HERE"/mods/runtime/go.{mod,sum} "$HERE/mods/runtime/pause/main.go"
	step dns "$HERE"/mods/dns/go.{mod,sum}
	step rootfs
	step images "$HERE/images.py" "$BIN"/.{kubernetes,runtime,dns,rootfs}
	[ -z "$FLANNEL" ] || step flannel "$HERE"/mods/flannel/go.{mod,sum} $(find "$HERE/mods/flannel/unused" -name '*.go' | sort)
fi
[ -n "$CHECK" ] || say "all in $BIN"
