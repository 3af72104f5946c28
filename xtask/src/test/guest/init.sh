#!/bin/sh
# The first process of an older kernel: mounts what tests need, runs them, switches the machine off.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C
# Emulated, everything takes many times longer.
export LAB_PATIENCE=10
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /tmp # not a mount: the tests themselves may lie below it
mount -t tmpfs run /run
mount -t cgroup2 cgroup /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf
echo "Linux $(uname -r) is up after $(cut -d' ' -f1 /proc/uptime) s."

failed=0
run() {
    directory=$1
    shift
    cd "$directory" || exit
    CARGO_MANIFEST_DIR=$directory "$@" --test-threads=1 --nocapture </dev/null || failed=1
}
. /tests.sh

echo "The tests ended with $failed after $(cut -d' ' -f1 /proc/uptime) s."
echo o >/proc/sysrq-trigger
sleep 60
