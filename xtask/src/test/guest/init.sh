#!/bin/sh
# The first process of a guest's kernel: mounts what tests need, runs them, switches the machine off.
# The kernel has the first serial port as its console. What becomes of the tests goes out by the second,
# which nobody else writes to, in the form that report.rs says. Its name is in REPORTS.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C
# Emulated, everything takes many times longer.
export LAB_PATIENCE=10
# So does the verifier: tests hand their programs on.
export LAB_REUSE=1
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /tmp # not a mount: the tests themselves may lie below it
mount -t tmpfs run /run
mount -t cgroup2 cgroup /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf

# Bytes as they are: no character is added or understood.
stty -F "/dev/$REPORTS" raw -echo 115200
exec 3>"/dev/$REPORTS"

now() {
    cut -d' ' -f1 /proc/uptime
}

# run NAME DIRECTORY COMMAND...
run() {
    name=$1
    directory=$2
    shift 2
    echo "begin $name" >&3
    start=$(now)
    (cd "$directory" && CARGO_MANIFEST_DIR=$directory exec "$@") </dev/null >/run/output 2>&1 3>&-
    status=$?
    # A process that a test left behind may go on writing.
    length=$(wc -c </run/output)
    echo "end $status $start $(now) $length $name" >&3
    head -c "$length" /run/output >&3
}

echo "up $(uname -r) $(now)" >&3
. /tests.sh
echo complete >&3
# Waits until all has been sent.
stty -F "/dev/$REPORTS" raw
echo o >/proc/sysrq-trigger
sleep 60
