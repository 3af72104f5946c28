//! Devices as netlink reports them.

use std::{
    fs,
    net::IpAddr,
    time::{Duration, Instant},
};

use lb_datapath::devices::{DeviceKind, DeviceNames, Event, Role, RoleRules, Watcher};
use lb_tests::{Namespace, PATIENCE, SILENCE, eventually, patient};
use nix::{
    sys::resource::{UsageWho, getrusage},
    time::ClockId,
};
use tokio::time::timeout;

/// Runs a future inside a namespace.
fn watch<T: Send + 'static>(
    namespace: &Namespace,
    work: impl AsyncFnOnce(Watcher) -> T + Send + 'static,
) -> T {
    within(namespace, async || {
        work(Watcher::start().await.unwrap()).await
    })
}

fn within<T: Send + 'static>(
    namespace: &Namespace,
    work: impl AsyncFnOnce() -> T + Send + 'static,
) -> T {
    namespace.run(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(work())
    })
}

/// Runs `ip` inside the namespace of the calling thread, and returns what it prints.
fn ip(arguments: &str) -> String {
    let output = std::process::Command::new("ip")
        .args(arguments.split_whitespace())
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

/// The events up to a wanted one, or all that arrive within a while.
async fn until(watcher: &mut Watcher, wanted: impl Fn(&Event) -> bool) -> Vec<Event> {
    let mut events = Vec::new();
    while !events.iter().any(&wanted) {
        let next = timeout(patient(PATIENCE), watcher.next()).await;
        events.extend(next.unwrap_or_else(|_| panic!("{events:?}")).unwrap());
    }
    events
}

/// Follows changes until the state is as it should be.
async fn follow(watcher: &mut Watcher, is_right: impl Fn(&Watcher) -> bool) {
    while !is_right(watcher) {
        let next = timeout(patient(PATIENCE), watcher.next()).await;
        next.expect("the state is not right yet").unwrap();
    }
}

/// Waits until there is no more news about routes and neighbours.
async fn quiet(watcher: &mut Watcher) {
    while timeout(SILENCE, watcher.next()).await.is_ok() {}
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn the_present_is_known_at_the_start() {
    let host = Namespace::new();
    host.ip("link add br0 type bridge");
    host.ip("link add veth1 mtu 1400 type veth peer name veth2");
    host.ip("link set veth1 master br0 up");
    host.ip("link add vx0 type vxlan id 7 dstport 4789 dev veth2");
    host.ip("addr add 10.1.0.1/24 dev br0");
    host.ip("addr add 10.1.0.2/24 dev br0");
    host.ip("link set br0 up");
    host.ip("route add default via 10.1.0.9");
    let devices = watch(&host, async |watcher| watcher.devices().clone());

    let bridge = devices.by_name("br0").unwrap();
    let veth = devices.by_name("veth1").unwrap();
    assert_eq!(bridge.kind, DeviceKind::Bridge);
    assert!(bridge.default_route && !veth.default_route);
    assert_eq!((veth.kind, veth.mtu), (DeviceKind::Veth, 1400));
    assert_eq!(veth.master, Some(bridge.index));
    assert!(veth.mac.is_some() && veth.up);
    assert_eq!(devices.by_name("vx0").unwrap().kind, DeviceKind::Tunnel);
    assert_eq!(devices.by_name("lo").unwrap().kind, DeviceKind::Loopback);
    for ip in ["127.0.0.1", "::1", "10.1.0.1", "10.1.0.2"] {
        assert!(devices.is_local(address(ip)), "{ip}");
        assert!(devices.local_addresses().contains(&address(ip)), "{ip}");
    }
    assert!(!devices.is_local(address("10.1.0.3")));
}

#[test]
fn devices_and_addresses_are_followed() {
    let host = Namespace::new();
    watch(&host, async |mut watcher: Watcher| {
        ip("link add pod1 type veth peer name eth0");
        until(
            &mut watcher,
            |event| matches!(event, Event::Added(device) if device.name == "pod1"),
        )
        .await;
        let index = watcher.devices().by_name("pod1").unwrap().index;

        ip("link set pod1 name pod2");
        until(&mut watcher, |event| {
            matches!(event, Event::Changed { before, after }
                if before.name == "pod1" && after.name == "pod2" && after.index == index)
        })
        .await;

        ip("addr add 10.1.0.1/24 dev pod2");
        until(&mut watcher, |event| {
            matches!(event, Event::AddressAdded { index: at, address: added }
                if *at == index && added.ip == address("10.1.0.1") && added.prefix_length == 24)
        })
        .await;

        ip("link set pod2 up");
        ip("link set eth0 up");
        until(&mut watcher, |event| {
            matches!(event, Event::Changed { after, .. } if after.index == index && after.carrier)
        })
        .await;

        ip("addr del 10.1.0.1/24 dev pod2");
        until(
            &mut watcher,
            |event| matches!(event, Event::AddressRemoved { index: at, .. } if *at == index),
        )
        .await;
        assert!(!watcher.devices().is_local(address("10.1.0.1")));

        ip("link del pod2");
        let events = until(
            &mut watcher,
            |event| matches!(event, Event::Removed(device) if device.index == index),
        )
        .await;
        assert!(watcher.devices().get(index).is_none(), "{events:?}");
    });
}

#[test]
fn a_port_that_leaves_its_bridge_is_still_there() {
    let host = Namespace::new();
    watch(&host, async |mut watcher: Watcher| {
        ip("link add br0 type bridge");
        ip("link add pod1 type veth peer name eth0");
        ip("link set pod1 master br0");
        until(
            &mut watcher,
            |event| matches!(event, Event::Changed { after, .. } if after.master.is_some()),
        )
        .await;
        ip("link set pod1 nomaster");
        let events = until(&mut watcher, |event| {
            matches!(event, Event::Changed { after, .. }
                if after.name == "pod1" && after.master.is_none())
        })
        .await;
        let removed = events
            .iter()
            .any(|event| matches!(event, Event::Removed(_)));
        assert!(!removed, "{events:?}");
    });
}

#[test]
fn changed_next_hops_are_told_of_once_per_swarm() {
    let host = Namespace::new();
    // News about IPv6 comes seconds later.
    for scope in ["all", "default"] {
        let setting = format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6");
        host.run(|| fs::write(setting, "1").unwrap());
    }
    host.ip("link add pod1 type veth peer name eth0");
    host.ip("addr add 10.1.0.1/24 dev pod1");
    host.ip("link set pod1 up");
    host.ip("link set eth0 up");
    watch(&host, async |mut watcher: Watcher| {
        let hops = |event: &Event| *event == Event::NextHopsChanged;
        ip("neigh add 10.1.0.7 lladdr 02:00:00:00:00:01 dev pod1");
        quiet(&mut watcher).await;

        for change in [
            "neigh replace 10.1.0.7 lladdr 02:00:00:00:00:02 dev pod1",
            "neigh del 10.1.0.7 dev pod1",
            "route add 10.9.0.0/16 via 10.1.0.7",
            "route del 10.9.0.0/16",
            "rule add from 10.8.0.0/16 lookup 100",
            "link set eth0 down",
        ] {
            ip(change);
            until(&mut watcher, hops).await;
            quiet(&mut watcher).await;
        }

        // News about a neighbour that changes nothing.
        ip("link set eth0 up");
        // The kernel reports the carrier in its own time.
        eventually(|| match ip("-oneline link show pod1") {
            link if link.contains(" state UP ") => Ok(()),
            link => Err(link),
        });
        ip("neigh replace 10.1.0.7 lladdr 02:00:00:00:00:03 dev pod1 nud reachable");
        quiet(&mut watcher).await;
        ip("neigh replace 10.1.0.7 lladdr 02:00:00:00:00:03 dev pod1 nud stale");
        let next = timeout(SILENCE, watcher.next()).await;
        assert!(next.is_err(), "{next:?}");

        let start = Instant::now();
        let mut told = 0;
        for net in 0..100 {
            ip(&format!("route add 10.77.{net}.0/24 via 10.1.0.7"));
            if let Ok(events) = timeout(Duration::ZERO, watcher.next()).await {
                told += events.unwrap().into_iter().filter(hops).count();
            }
        }
        let most = start.elapsed().as_millis() as usize / 50 + 2;
        assert!(told <= most, "{told} times, at most {most}");
    });
}

#[test]
fn default_routes_make_devices_external() {
    let host = Namespace::new();
    host.ip("link add up0 type veth peer name far0");
    host.ip("addr add 10.1.0.1/24 dev up0");
    host.ip("link set up0 up");
    host.ip("link set far0 up");
    watch(&host, async |mut watcher: Watcher| {
        let rules = RoleRules::new(DeviceNames::default(), vec![]).unwrap();
        let default = |wanted: bool| {
            move |event: &Event| {
                matches!(event, Event::Changed { after, .. }
                    if after.name == "up0" && after.default_route == wanted)
            }
        };
        let role = |watcher: &Watcher| rules.role(watcher.devices().by_name("up0").unwrap());
        assert_eq!(role(&watcher), Role::Pod);
        ip("route add default via 10.1.0.9");
        until(&mut watcher, default(true)).await;
        assert_eq!(role(&watcher), Role::External);

        // The kernel does not report IPv4 routes that vanish with their link.
        ip("link set up0 down");
        until(&mut watcher, default(false)).await;
        assert_eq!(role(&watcher), Role::Pod);
    });
}

#[test]
fn pods_are_no_reason_to_list_all_routes() {
    let host = Namespace::new();
    host.ip("link add up0 type veth peer name far0");
    host.ip("addr add 10.1.0.1/24 dev up0");
    host.ip("link set up0 up");
    host.ip("link set far0 up");
    host.ip("route add default via 10.1.0.9");
    watch(&host, async |mut watcher: Watcher| {
        quiet(&mut watcher).await;
        let before = watcher.route_listings();
        for pod in 0..3 {
            ip(&format!("link add pod{pod} type veth peer name eth{pod}"));
            ip(&format!("link set pod{pod} up"));
            ip(&format!("link set eth{pod} up"));
            ip(&format!("route add 10.244.0.{pod}/32 dev pod{pod}"));
        }
        ip("link set pod0 down");
        ip("link del pod1");
        follow(&mut watcher, |watcher| {
            let devices = watcher.devices();
            let pod0 = devices.by_name("pod0");
            devices.by_name("pod1").is_none() && pod0.is_some_and(|pod0| !pod0.up)
        })
        .await;
        quiet(&mut watcher).await;
        assert_eq!(watcher.route_listings(), before);

        ip("link del up0");
        let gone = |event: &Event| matches!(event, Event::Removed(up0) if up0.name == "up0");
        until(&mut watcher, gone).await;
        quiet(&mut watcher).await;
        assert!(watcher.route_listings() > before);
    });
}

#[test]
fn a_hundred_pods_come_and_go() {
    let host = Namespace::new();
    watch(&host, async |mut watcher: Watcher| {
        let mut script = String::new();
        for pod in 0..100 {
            script += &format!("link add pod{pod} type veth peer name eth{pod}\n");
            script += &format!("addr add 10.1.{pod}.1/24 dev pod{pod}\n");
            script += &format!("link set pod{pod} up\nlink set eth{pod} up\n");
        }
        let pods = |watcher: &Watcher| {
            let devices = watcher.devices().iter();
            devices
                .filter(|device| device.name.starts_with("pod"))
                .count()
        };
        let all = |watcher: &Watcher| {
            pods(watcher) == 100 && watcher.devices().is_local(address("10.1.99.1"))
        };
        let mut events = run_batch(&mut watcher, script, all).await;

        let script = (0..100).map(|pod| format!("link del pod{pod}\n")).collect();
        let none = |watcher: &Watcher| watcher.devices().iter().count() == 1;
        events += run_batch(&mut watcher, script, none).await;
        assert_eq!(pods(&watcher), 0);
        // A busy machine may have read the state again, instead of getting each change.
        assert!(events >= 600 || watcher.overflows() > 0, "{events}");
    });
}

/// Runs `ip -batch` beside the watcher until both are done, and returns the number of events.
/// Checks that following the changes costs little compared with making them.
async fn run_batch(
    watcher: &mut Watcher,
    script: String,
    is_done: impl Fn(&Watcher) -> bool,
) -> usize {
    use std::{io::Write as _, process};

    let start = Instant::now();
    let before = childrens_cpu_time();
    let mut batch = process::Command::new("ip")
        .args(["-batch", "-"])
        .stdin(process::Stdio::piped())
        .spawn()
        .unwrap();
    batch
        .stdin
        .take()
        .unwrap()
        .write_all(script.as_bytes())
        .unwrap();
    let mut events = 0;
    let mut busy = Duration::ZERO;
    let mut ended = false;
    loop {
        let before = own_cpu_time();
        match timeout(SILENCE, watcher.next()).await {
            Ok(next) => events += next.unwrap().len(),
            Err(_) if ended && is_done(watcher) => break,
            Err(_) => assert!(start.elapsed() < patient(2 * PATIENCE), "it does not end"),
        }
        busy += own_cpu_time() - before;
        ended = batch.try_wait().unwrap().is_some();
    }
    assert!(batch.wait().unwrap().success());
    let made = childrens_cpu_time() - before;
    println!("{events} events: {made:?} to make, {busy:?} to follow");
    // Usually about twice as much, without optimisation.
    assert!(busy < 10 * made, "{busy:?} beside {made:?}");
    events
}

/// CPU time of this thread so far.
fn own_cpu_time() -> Duration {
    ClockId::CLOCK_THREAD_CPUTIME_ID.now().unwrap().into()
}

/// CPU time of this process's children that have ended.
fn childrens_cpu_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
    [usage.user_time(), usage.system_time()]
        .iter()
        .map(|time| Duration::new(time.tv_sec() as u64, 1000 * time.tv_usec() as u32))
        .sum()
}

#[test]
fn after_lost_messages_the_state_is_right_again() {
    let host = Namespace::new();
    within(&host, async || {
        let mut watcher = Watcher::with_buffer(4096).await.unwrap();
        // Far more than the buffer holds, while nothing is read.
        for round in 0..60 {
            ip(&format!(
                "link add pod{round} type veth peer name eth{round}"
            ));
            ip(&format!("addr add 10.1.{round}.1/24 dev pod{round}"));
        }
        for round in (0..60).step_by(2) {
            ip(&format!("link del pod{round}"));
        }
        follow(&mut watcher, |watcher| {
            let devices = watcher.devices();
            (0..60).all(|round| {
                let expected = round % 2 == 1;
                let address = address(&format!("10.1.{round}.1"));
                devices.by_name(&format!("pod{round}")).is_some() == expected
                    && devices.is_local(address) == expected
            })
        })
        .await;
        assert!(watcher.overflows() > 0);
    });
}
