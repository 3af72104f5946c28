#!/usr/bin/env python3
"""The work of bench.sh: `serve` in the control plane's namespaces, `measure ADMIN PROXY N LOGS` on the node."""
import base64, concurrent.futures, http.client, json, os, re, socket, ssl, statistics, subprocess, sys, threading, time

GROUPS = {b"A": [f"172.30.77.{i}" for i in range(200, 210)], b"B": [f"172.30.77.{i}" for i in range(210, 220)]}
PORT = 8080
NAMESPACE = "bench"
# Services asked whether they answer: so many of all, evenly.
SAMPLE = 50
CHANGES = 40
REST, CHURN = 20, 20
RATE = 100
PROXIES = {
    "node-lb": lambda kubeconfig: [os.environ["NODE_LB"], "agent", "--kubeconfig", kubeconfig, "--node", "node-1",
                                   "--cgroup-path", os.environ["CGROUP"], "--detect-local-mode", "NodeCIDR"],
    "kube-proxy": lambda kubeconfig: ["kube-proxy", "--proxy-mode=nftables", "--kubeconfig", kubeconfig,
                                      "--hostname-override=node-1", "--cluster-cidr=10.244.0.0/16",
                                      "--conntrack-max-per-core=0", "--conntrack-min=0"],
}
CLEANUP = {"node-lb": lambda: [os.environ["NODE_LB"], "cleanup"], "kube-proxy": lambda: ["kube-proxy", "--cleanup"]}


def serve():
    def loop(listener, name):
        while True:
            connection, _ = listener.accept()
            connection.sendall(name)
            connection.close()
    for name, addresses in GROUPS.items():
        for address in addresses:
            threading.Thread(target=loop, args=(socket.create_server((address, PORT)), name)).start()


class Api:
    """Requests with an administrator's token, one connection a thread."""

    def __init__(self, kubeconfig):
        text = open(kubeconfig).read()
        self.server = re.search(r'server: "https://(.*?)"', text)[1]
        self.token = re.search(r'token: "(.*?)"', text)[1]
        ca = base64.b64decode(re.search(r'certificate-authority-data: "(.*?)"', text)[1]).decode()
        self.tls = ssl.create_default_context(cadata=ca)
        self.local = threading.local()

    def __call__(self, method, path, body=None):
        if not hasattr(self.local, "connection"):
            self.local.connection = http.client.HTTPSConnection(self.server, context=self.tls, timeout=60)
        kind = "merge-patch+json" if method == "PATCH" else "json"
        headers = {"Authorization": "Bearer " + self.token, "Content-Type": f"application/{kind}"}
        self.local.connection.request(method, path, body and json.dumps(body), headers)
        answer = self.local.connection.getresponse()
        text = answer.read()
        if answer.status >= 300 and not (method == "POST" and answer.status == 409):
            sys.exit(f"{method} {path}: {answer.status} {text[:300]!r}")
        return json.loads(text)


def slices(name=""):
    return f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices" + (name and "/" + name)


def endpoints(group):
    return [{"addresses": [a], "conditions": {"ready": True}} for a in GROUPS[group]]


def make(api, number):
    name = f"s{number}"
    service = {"metadata": {"name": name}, "spec": {"ports": [{"port": 80, "targetPort": PORT}]}}
    api("POST", f"/api/v1/namespaces/{NAMESPACE}/services", service)
    api("POST", slices(), {
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}}, "addressType": "IPv4",
        "ports": [{"name": "", "port": PORT, "protocol": "TCP"}], "endpoints": endpoints(b"A")})


def ask(ip, wait=1.0):
    """Who answers at a Service, or None."""
    try:
        with socket.create_connection((ip, 80), timeout=wait) as connection:
            return connection.recv(1)
    except OSError:
        return None


def usage(pid):
    """CPU seconds and resident bytes of a process."""
    fields = open(f"/proc/{pid}/stat").read().rsplit(") ", 1)[1].split()
    cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    resident = int(re.search(r"VmRSS:\s+(\d+)", open(f"/proc/{pid}/status").read())[1]) * 1024
    return cpu, resident


def change(api, number, group):
    api("PATCH", slices(f"s{number}"), {"endpoints": endpoints(group)})


def measure(api, proxy, kubeconfig, count, addresses, log):
    start = time.monotonic()
    process = subprocess.Popen(PROXIES[proxy](kubeconfig), stdout=log, stderr=log)
    try:
        left = dict(addresses)
        while left:
            for number, ip in list(left.items()):
                if ask(ip, 0.2):
                    del left[number]
            if process.poll() is not None or time.monotonic() - start > 600:
                sys.exit(f"{proxy}: {len(left)} of the Services asked do not answer; see its log")
        programmed = time.monotonic() - start
        time.sleep(5)
        latencies = []
        numbers = list(addresses)
        for i in range(CHANGES):
            number, group = numbers[i % len(numbers)], b"B" if i < len(numbers) else b"A"
            change(api, number, group)
            begin = time.monotonic()
            while ask(addresses[number]) != group:
                if time.monotonic() - begin > 60:
                    sys.exit(f"{proxy}: a change is not followed")
            latencies.append(time.monotonic() - begin)
            time.sleep(0.05)
        time.sleep(5)
        before, _ = usage(process.pid)
        time.sleep(REST)
        after, resident = usage(process.pid)
        rest = (after - before) / REST
        before, _ = usage(process.pid)
        begin = time.monotonic()
        for i in range(RATE * CHURN):
            time.sleep(max(0, begin + i / RATE - time.monotonic()))
            change(api, i % count, b"B" if i // count % 2 == 0 else b"A")
        took = time.monotonic() - begin
        after, churned = usage(process.pid)
        for number in addresses:
            change(api, number, b"A")
        latencies.sort()
        return [proxy, f"{programmed:.2f} s", f"{statistics.median(latencies) * 1e3:.1f} ms", f"{latencies[-1] * 1e3:.0f} ms",
                f"{rest * 100:.1f} %", f"{(after - before) / took * 100:.0f} %", f"{RATE * CHURN / took:.0f}",
                f"{resident >> 20} MiB", f"{churned >> 20} MiB"]
    finally:
        process.terminate()
        process.wait()
        subprocess.run(CLEANUP[proxy](), stdout=log, stderr=log)


def main(admin, kubeconfig, count, logs):
    api = Api(admin)
    api("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: make(api, number), range(count)))
    items = api("GET", f"/api/v1/namespaces/{NAMESPACE}/services?resourceVersion=0")["items"]
    ips = {int(s["metadata"]["name"][1:]): s["spec"]["clusterIP"] for s in items}
    addresses = {n: ips[n] for n in range(0, count, max(1, count // SAMPLE))}
    print(f"\n{count:,} Services of ten endpoints\n\n| | all programmed | one change, p50 | max | CPU at rest | CPU under churn | changes/s | "
          "memory at rest | under churn |\n|---|---|---|---|---|---|---|---|---|")
    for proxy in PROXIES:
        with open(f"{logs}/bench-{proxy}.log", "a") as log:
            print("|", " | ".join(measure(api, proxy, kubeconfig, count, addresses, log)), "|", flush=True)


if sys.argv[1] == "serve":
    serve()
else:
    main(sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
