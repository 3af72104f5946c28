#!/usr/bin/env python3
"""How good clients fare while a Service is attacked, or a part of its endpoints is dead: on a cluster that is up,
for whichever Service proxy runs there.

usage: hostile.py [--seconds S] [ROW...]

  burst      300,000 SYNs from spoofed sources, and good connections 5 s and 70 s later
  stream     20,000 such SYNs a second, and good connections meanwhile, to the Service and to its neighbour
  short      four clients that open one short connection after the other; they close first
  short-server   the same, but the server closes first
  silent     two of ten endpoints vanish without a word, and stay listed for 40 s
  refusing   the same, but connections to them are reset

Without rows: all of them. S: how long `stream` and each third of `short` last (15). The Services are NodePorts of
node-1, the endpoints pods on node-2, so that connections cross two nodes with a source address of node-1's. A
connection counts if it is answered within 0.9 s: the client has not had to send its SYN again by then. Where
endpoints are dead it has 5 s. Needs
lab-tool of crate lb-tests (`cargo build`) in $LAB_TOOL, by default target/debug.
"""
import argparse
import contextlib
import glob
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
TOOL = pathlib.Path(os.environ.get("LAB_TOOL", HERE / "../../target/debug/lab-tool")).resolve()
NAMESPACE = "hostile"
NODE = "172.30.77.11"
SPOOFED = "198.18.0.0/15"
TARGET = 9090
# Service: NodePort, endpoints.
SERVICES = {"one": (30190, 1), "neighbour": (30191, 1), "ten": (30192, 10)}
CLIENTS = [f"172.29.77.{number}" for number in range(41, 45)]
# Seconds after which kube-proxy has recovered from a flood: a spoofed SYN that was answered lives for a minute in
# the kernel's table of connections.
AFTERMATH = 70
ROWS = ["burst", "stream", "short", "short-server", "silent", "refusing"]


def run_in(host, *command, **options):
    """Runs a command in a namespace of the cluster's; returns what it prints."""
    command = [HERE / "in.sh", host, *command]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **options).stdout


def kubectl(*arguments, **options):
    return run_in("client", "kubectl", "--namespace", NAMESPACE, *arguments, **options)


def seconds(value):
    return {"secs": int(value), "nanos": int(value % 1 * 1e9)}


class Job:
    """A command of lab-tool under way on a host."""

    def __init__(self, host, kind, description):
        command = [HERE / "in.sh", host, TOOL, kind, json.dumps(description)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "ready\n":
            sys.exit(f"{kind} on {host} did not start")

    def stop(self):
        self.process.stdin.write("null\n")
        self.process.stdin.flush()
        return self.wait()

    def wait(self):
        report = json.loads(self.process.stdout.readline())
        self.process.wait()
        return report


def load(service, source="0.0.0.0", pause=0.0, deadline=0.9, workers=1, at_least=0, server_closes=False):
    """Connections from the client outside the cluster, one after the other."""
    request = {
        "protocol": "Tcp",
        "target": f"{NODE}:{SERVICES[service][0]}",
        "source": f"{source}:0",
        "deadline": seconds(deadline),
        "payload": 0,
        "held_for": seconds(0),
        "server_closes": server_closes,
    }
    return Job("client", "load", {
        "request": request,
        "workers": workers,
        "persistent": False,
        "pause": seconds(pause),
        "at_least": at_least,
    })


def flood(service, rate=None, limit=10**12):
    target = f"{NODE}:{SERVICES[service][0]}"
    return Job("client", "flood", {"kind": "Syn", "targets": [target], "rate": rate, "limit": limit})


def twenty(service):
    """How many of twenty connections are answered."""
    report = load(service, pause=0.1, at_least=20).stop()
    return f"{report['ok']} of {report['ok'] + report['failed']}"


def say(row, text):
    print(f"{row:13} {text}", flush=True)


def burst(_):
    before = twenty("one")
    report = flood("one", limit=300_000).wait()
    took = report["elapsed"]["secs"] + report["elapsed"]["nanos"] / 1e9
    time.sleep(5)
    soon = twenty("one")
    time.sleep(AFTERMATH - 5)
    late = twenty("one")
    say("burst", f"{report['sent']} SYNs in {took:.1f} s; good connections: {before} before, {soon} after 5 s, "
        f"{late} after {AFTERMATH} s")


def stream(duration):
    attack = flood("one", rate=20_000)
    time.sleep(2)
    loads = {service: load(service, pause=0.5) for service in ("one", "neighbour")}
    time.sleep(duration)
    reports = {service: running.stop() for service, running in loads.items()}
    report = attack.stop()
    rate = report["sent"] / (report["elapsed"]["secs"] + report["elapsed"]["nanos"] / 1e9)
    fared = [f"{found['ok']} of {found['ok'] + found['failed']} to {service}" for service, found in reports.items()]
    say("stream", f"{rate:.0f} SYNs/s; good connections: {', '.join(fared)}")
    # What is measured next is not to suffer from it.
    time.sleep(AFTERMATH)


def short(duration, server_closes=False):
    row = "short-server" if server_closes else "short"
    for third in ("first", "second", "last"):
        loads = [load("one", source, server_closes=server_closes) for source in CLIENTS]
        time.sleep(duration)
        reports = [running.stop() for running in loads]
        done, failed = (sum(report[key] for report in reports) for key in ("ok", "failed"))
        say(row, f"{third} {duration} s: {done} done, {failed} failed")


def dead(row, verdict):
    """Connections while two endpoints are dead: in their own network namespaces, nobody is told."""
    pods = json.loads(kubectl("get", "pods", "--selector", "app=ten", "--output", "json"))["items"]
    victims = [network_of(pod["status"]["podIP"]) for pod in pods[:2]]
    with contextlib.ExitStack() as stack:
        for victim in victims:
            rule = f"tcp dport {TARGET} {verdict}"
            rules = f"table inet dead {{ chain input {{ type filter hook input priority 0; {rule}; }}; }}"
            subprocess.run(["nsenter", f"--net={victim}", "nft", "-f", "-"], input=rules, text=True, check=True)
            stack.callback(subprocess.run, ["nsenter", f"--net={victim}", "nft", "delete table inet dead"])
        running = load("ten", pause=0.02, deadline=5, workers=4)
        time.sleep(40)
        report = running.stop()
    p99, slowest = (report[key]["secs"] + report[key]["nanos"] / 1e9 for key in ("p99", "max"))
    total = report["ok"] + report["failed"]
    say(row, f"2 of 10 endpoints for 40 s: {report['failed']} of {total} connections failed, "
        f"{len(report['repeated_syns'])} served after a SYN sent again; of the served, p99 {p99 * 1000:.0f} ms, "
        f"slowest {slowest * 1000:.0f} ms")


def network_of(address):
    """The network namespace that has an address."""
    for path in glob.glob("/proc/[0-9]*/ns/net"):
        command = ["nsenter", f"--net={path}", "ip", "-brief", "address"]
        found = subprocess.run(command, capture_output=True, text=True)
        if f" {address}/" in found.stdout:
            return path
    sys.exit(f"nobody has {address}")


def deploy():
    images = (bin_dir() / "images.txt").read_text().split()
    image = [line for line in images if "/e2e-test-images/agnhost:" in line][-1]
    documents = []
    for name, (port, replicas) in SERVICES.items():
        serve = json.dumps({"name": "NAME", "address": "::", "http": [], "tcp": [TARGET], "udp": []})
        command = "echo stay | /tools/lab-tool serve '" + serve.replace("NAME", "'$HOSTNAME'") + "'"
        documents.append({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
            "spec": {
                "replicas": replicas, "selector": {"matchLabels": {"app": name}},
                "template": {"metadata": {"labels": {"app": name}}, "spec": {
                    "nodeName": "node-2", "terminationGracePeriodSeconds": 1,
                    "volumes": [{"name": "tools", "hostPath": {"path": str(TOOL.parent)}}],
                    "containers": [{
                        "name": "server", "image": image, "command": ["sh", "-c"], "args": [command],
                        "volumeMounts": [{"name": "tools", "mountPath": "/tools", "readOnly": True}],
                    }],
                }},
            },
        })
        documents.append({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"type": "NodePort", "selector": {"app": name},
                     "ports": [{"port": 80, "targetPort": TARGET, "nodePort": port}]},
        })
    run_in("client", "kubectl", "create", "namespace", NAMESPACE)
    kubectl("create", "--filename", "-", input="\n---\n".join(map(json.dumps, documents)))
    for name in SERVICES:
        kubectl("rollout", "status", f"deployment/{name}", "--timeout=90s")


def bin_dir():
    return pathlib.Path(os.environ.get("NODE_LB_CLUSTER_BIN", pathlib.Path.home() / ".cache/node-lb/cluster/bin"))


@contextlib.contextmanager
def ground():
    """The Services, the clients' addresses, and a wire on which answers to nobody end."""
    undo = contextlib.ExitStack()

    def later(*command):
        undo.callback(lambda: subprocess.run([HERE / "in.sh", *command], stdout=subprocess.DEVNULL))

    with undo:
        later("client", "kubectl", "delete", "namespace", NAMESPACE)
        deploy()
        for address in CLIENTS:
            run_in("client", "ip", "address", "add", f"{address}/32", "dev", "eth0")
            later("client", "ip", "address", "delete", f"{address}/32", "dev", "eth0")
        for name in ("node-1", "node-2", "node-3"):
            run_in(name, "ip", "route", "add", SPOOFED, "via", "172.30.77.1")
            later(name, "ip", "route", "delete", SPOOFED)
        run_in("net", "ip", "route", "add", "blackhole", SPOOFED)
        later("net", "ip", "route", "delete", SPOOFED)
        # So that the client never runs out of ports itself.
        for setting in ("net.ipv4.ip_local_port_range=10240 65535", "net.ipv4.tcp_tw_reuse=1"):
            run_in("client", "sysctl", "-qw", setting)
        # Every Service answers before anything is measured.
        for service in SERVICES:
            while load(service, at_least=1, deadline=2).stop()["ok"] == 0:
                time.sleep(0.2)
        yield


def main():
    parser = argparse.ArgumentParser(usage=__doc__, add_help=False)
    parser.add_argument("--seconds", type=int, default=15)
    parser.add_argument("rows", nargs="*", choices=[*ROWS, []], default=[])
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    rows = {
        "burst": burst,
        "stream": stream,
        "short": short,
        "short-server": lambda duration: short(duration, server_closes=True),
        "silent": lambda _: dead("silent", "drop"),
        "refusing": lambda _: dead("refusing", "reject with tcp reset"),
    }
    with ground():
        for row in options.rows or ROWS:
            rows[row](options.seconds)


main()
