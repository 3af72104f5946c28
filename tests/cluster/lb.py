#!/usr/bin/env python3
"""Stand-in for a cloud's load balancer: lb.py KUBECONFIG POOL[,POOL]

Gives each Service of type LoadBalancer an address per family from POOL, and routes that
address from the namespace it runs in (the client) to the nodes, as a router with equal-cost
paths would: to all ready nodes, or with externalTrafficPolicy Local to those that answer
"here" on the Service's healthCheckNodePort (and, as load balancers have thresholds, to those that fell
silent less than PATIENCE ago); a Service with session affinity to one of them.
"""
import base64, ipaddress, json, re, ssl, subprocess, sys, time, urllib.error, urllib.request

conf = open(sys.argv[1]).read()
server = re.search(r'server: "(.*?)"', conf)[1]
token = re.search(r'token: "(.*?)"', conf)[1]
tls = ssl.create_default_context(
    cadata=base64.b64decode(re.search(r'certificate-authority-data: "(.*?)"', conf)[1]).decode())
pools = [ipaddress.ip_network(p) for p in sys.argv[2].split(",")]
FINALIZER = "service.kubernetes.io/load-balancer-cleanup"
PATIENCE = 6
healths = {}  # node and port: what it said last, and since when it says nothing
given, routes = {}, {}  # service uid: its addresses; address: the nodes it is routed to


def api(path, patch=None, kind="merge-patch"):
    r = urllib.request.Request(server + path, headers={"Authorization": "Bearer " + token})
    if patch is not None:
        r.method, r.data = "PATCH", json.dumps(patch).encode()
        r.add_header("Content-Type", f"application/{kind}+json")
    with urllib.request.urlopen(r, context=tls, timeout=5) as answer:
        return json.load(answer)


def healthy(node, port):
    host = f"[{node}]" if ":" in node else node
    said, silent = healths.get((node, port), (False, None))
    try:
        with urllib.request.urlopen(f"http://{host}:{port}/healthz", timeout=1) as answer:
            said, silent = answer.status == 200, None
    except urllib.error.HTTPError:
        said, silent = False, None
    except OSError:
        silent = silent or time.monotonic()
        said = said and time.monotonic() - silent < PATIENCE
    healths[node, port] = said, silent
    return said


def free(pool):
    taken = {a for addresses in given.values() for a in addresses}
    return next(str(a) for a in list(pool.hosts())[:250] if str(a) not in taken)


def route(address, nodes):
    if routes.get(address, []) == nodes:
        return
    ip = ["ip", "-6" if ":" in address else "-4", "route"]
    if nodes:
        hops = [w for n in nodes for w in ("nexthop", "via", n)]
        subprocess.run([*ip, "replace", address, *hops], check=True)
    else:
        subprocess.run([*ip, "del", address], check=True)
    routes[address] = nodes


def ready(node):
    return any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", []))


def step():
    nodes = [[a["address"] for a in n["status"].get("addresses", []) if a["type"] == "InternalIP"]
             for n in api("/api/v1/nodes")["items"] if ready(n)]
    seen = set()
    for s in api("/api/v1/services")["items"]:
        meta, spec, uid = s["metadata"], s["spec"], s["metadata"]["uid"]
        path = f"/api/v1/namespaces/{meta['namespace']}/services/{meta['name']}"
        have = s["status"].get("loadBalancer", {}).get("ingress", [])
        wanted = spec["type"] == "LoadBalancer" and "deletionTimestamp" not in meta \
            and not spec.get("loadBalancerClass")
        finalizers = meta.get("finalizers", [])
        if not wanted:
            if FINALIZER in finalizers:  # ours to let go
                if have:
                    api(path + "/status", {"status": {"loadBalancer": {"ingress": None}}})
                api(path, {"metadata": {"finalizers": [f for f in finalizers if f != FINALIZER]}})
            continue
        seen.add(uid)
        if FINALIZER not in finalizers:
            api(path, {"metadata": {"finalizers": finalizers + [FINALIZER]}})
        families = spec["ipFamilies"]
        if len(given.get(uid, ())) != len(families):
            given[uid] = [i["ip"] for i in have]
            for f in families[len(given[uid]):]:
                given[uid].append(free(next(p for p in pools if f"IPv{p.version}" == f)))
        for a in given[uid]:
            six = ":" in a
            to = [n for ips in nodes for n in ips if (":" in n) == six]
            if spec.get("externalTrafficPolicy") == "Local":
                to = [n for n in to if healthy(n, spec["healthCheckNodePort"])]
            if spec["sessionAffinity"] == "ClientIP":
                to = to[:1]  # each node keeps its own table of clients
            route(a, to)
        if [i["ip"] for i in have] != given[uid]:
            ingress = [{"ip": a, "ipMode": "VIP"} for a in given[uid]]
            api(path + "/status", {"status": {"loadBalancer": {"ingress": ingress}}})
    for uid in [u for u in given if u not in seen]:
        for a in given.pop(uid):
            route(a, [])


while True:
    try:
        step()
    except (OSError, KeyError) as e:  # conflicts and restarts: next round sees
        print(e, file=sys.stderr, flush=True)
    time.sleep(1)
