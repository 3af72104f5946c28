//! The agent follows its node: devices, addresses, and what the Node object says.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc, time::Instant};

use lb_datapath::devices::{Device, Event as DeviceEvent, Role};
use lb_objects::{Node, ObjectName};

use super::{
    Agent,
    node::{
        by_importance, external_addresses, facts, listen_addresses, local_addresses, local_node,
    },
    report::tell_once,
};
use crate::{
    health::addresses::ListenAddresses,
    map_writer::Reserved,
    plan::{LocalDetector, Undetected},
};

impl Agent {
    /// Follows the node's devices, addresses and routes.
    pub(super) async fn devices_changed(&mut self, changes: &[DeviceEvent]) -> anyhow::Result<()> {
        let since = Instant::now();
        if changes.contains(&DeviceEvent::NextHopsChanged) {
            self.kernel.next_hops_changed();
        }
        if changes
            .iter()
            .all(|change| *change == DeviceEvent::NextHopsChanged)
        {
            return Ok(());
        }
        for change in changes {
            if let DeviceEvent::Removed(device) = change {
                self.attachments.forget(&self.kernel, device.index);
            }
        }
        let devices = self.watcher.devices();
        let followed = self.attachments.follow(&mut self.kernel, devices, changes);
        if let Err(error) = followed {
            tracing::warn!("cannot follow the node's devices: {error:#}");
        }
        let addresses = changes.iter().any(|change| {
            matches!(
                change,
                DeviceEvent::AddressAdded { .. } | DeviceEvent::AddressRemoved { .. }
            )
        });
        if addresses {
            self.own_addresses = local_addresses(devices);
        }
        if addresses && !self.store.is_synced() {
            self.follow_local_state();
        } else if addresses {
            let concerned = self.node_changed()?;
            self.listen_again().await;
            if !concerned.is_empty() || self.syncer.has_other_reserved() {
                self.sync(concerned, since).await;
            }
        } else {
            self.report_unserved();
        }
        Ok(())
    }

    /// Takes over what needs no Node object.
    pub(super) fn follow_local_state(&mut self) {
        self.kernel.next_hops_changed();
        self.set_local_addresses();
    }

    /// Takes over what the Node object and the devices say, and says which Services that concerns.
    pub(super) fn node_changed(&mut self) -> anyhow::Result<BTreeSet<ObjectName>> {
        let devices = self.watcher.devices();
        let addresses = &self.own_addresses;
        let external = external_addresses(devices, |device| self.is_external(device));
        let object = self.store.node().map(Arc::as_ref);
        let had_problem = self.node.problem().map(str::to_owned);
        self.node.update(&self.config, object, addresses, &external);
        self.report_node(had_problem.as_deref());

        let addresses = &self.own_addresses;
        let node = local_node(&self.config, self.node.node(), addresses);
        let facts = facts(&self.config, self.node.node(), addresses);
        let concerned = self.syncer.set_node(node, facts, &self.store);
        self.set_reserved();
        self.configure()?;
        self.report_detection();
        self.report_unserved();
        Ok(concerned)
    }

    /// Writes the node's settings.
    pub(super) fn configure(&mut self) -> anyhow::Result<()> {
        let detector = LocalDetector::new(&self.config.detect_local, self.node.node());
        self.set_local_addresses();
        self.kernel
            .configure(&self.config, self.syncer.node(), &detector)?;
        let node = Arc::new(self.node.node().clone());
        let local_node = Arc::new(self.syncer.node().clone());
        let addresses = Arc::new(self.own_addresses.clone());
        self.explainer.change(|known| {
            known.node = node;
            known.local_node = local_node;
            known.addresses = addresses;
        });
        Ok(())
    }

    /// Says which addresses Services do not get. The next sync has the maps follow.
    pub(super) fn set_reserved(&mut self) {
        let mut own = self.own_addresses.clone();
        own.extend(&self.node.node().addresses);
        let api_servers = self.feed.api_servers.addresses().borrow().clone();
        let reserved = Reserved::for_agent(&self.config, own, api_servers);
        let known_as = Arc::new(reserved.clone());
        self.explainer.change(|known| known.reserved = known_as);
        self.syncer.set_reserved(reserved);
    }

    /// Says whether this node's pods can be told from other sources: in readiness, and in the log
    /// once for each change.
    fn report_detection(&mut self) {
        let (node, detect) = (self.node.node(), &self.config.detect_local);
        let (own, hosted) = (&self.own_addresses, self.syncer.hosted());
        let on_node = own.iter().copied().filter(|ip| hosted.has(*ip)).collect();
        let basis = (node.clone(), hosted.revision(), on_node);
        if self.detected_by.as_ref() == Some(&basis) {
            return;
        }
        let pods = hosted.addresses();
        let pods = pods.filter(|ip| !own.contains(ip) && !node.addresses.contains(ip));
        let undetected =
            Undetected::on(node, detect).or_else(|| Undetected::by(pods, node, detect));
        // The missing family may be one that no Service has. That must not stop a rollout.
        let unready = undetected.as_ref().filter(|found| !found.is_partial());
        let unready = unready.map(ToString::to_string);
        self.servers.detection.set(unready.as_deref());
        let problem = undetected.map(|found| found.to_string());
        tell_once(problem, &mut self.undetected);
        self.detected_by = Some(basis);
    }

    /// Says which devices should have programs and cannot: in readiness, and in the log once for
    /// each change.
    fn report_unserved(&mut self) {
        let detector = LocalDetector::new(&self.config.detect_local, self.node.node());
        let devices = self.watcher.devices();
        let problem = self.attachments.unserved(devices, &detector);
        let problem = problem.map(|unserved| unserved.to_string());
        self.servers.devices.set(problem.as_deref());
        tell_once(problem, &mut self.unserved);
    }

    /// The same as [`Self::report_detection`], if there are other pods than before with a Service.
    pub(super) fn report_detection_by_pods(&mut self) {
        let revision = self.syncer.hosted().revision();
        if std::mem::replace(&mut self.pods_seen, revision) != revision {
            self.report_detection();
        }
    }

    /// Has healthCheckNodePort servers listen on the addresses that this node has by now.
    pub(super) async fn listen_again(&mut self) {
        let addresses = self.listen_addresses();
        for problem in self.service_health.listen_on(addresses).await {
            tracing::warn!("{problem}");
            self.tell_of_health_check(&problem);
        }
    }

    /// Tells load balancers what became of this node: only now do the maps agree with it.
    pub(super) fn tell_of_node(&self) {
        let object = self.store.node().map(Arc::as_ref);
        self.proxy_health.set_node(self.node.eligible(object));
    }

    fn listen_addresses(&self) -> ListenAddresses {
        listen_addresses(&self.config, self.syncer.node(), &self.own_addresses)
    }

    /// Says which addresses are the node's own. Those without room are told of once.
    fn set_local_addresses(&mut self) {
        let named: &[IpAddr] = &self.node.node().addresses;
        let devices = self.watcher.devices();
        let addresses = by_importance(devices, named, |device| self.is_external(device));
        let left_out = match self.kernel.set_local_addresses(&addresses) {
            Ok(left_out) => left_out,
            Err(error) => {
                tracing::warn!("cannot say which addresses are the node's own: {error}");
                return;
            }
        };
        let room = self.kernel.local_address_table_size();
        let metrics = &self.metrics.local_addresses;
        metrics.in_map.set((addresses.len() - left_out) as i64);
        metrics.left_out.set(left_out as i64);
        match (self.addresses_left_out, left_out) {
            (0, 1..) => tracing::warn!(
                "this node has {} addresses, and LOCAL_ADDRESSES has room for {room}: what comes from \
                 the others counts as from outside; raise --local-address-table-size",
                addresses.len(),
            ),
            (1.., 0) => tracing::info!("LOCAL_ADDRESSES has room for all addresses again"),
            _ => {}
        }
        self.addresses_left_out = left_out;
    }

    fn is_external(&self, device: &Device) -> bool {
        let attached = self.attachments.devices().get(&device.index);
        attached.is_some_and(|attached| attached.role == Role::External)
    }

    /// Says what is wrong with the Node object, or that it is well again: once.
    fn report_node(&self, before: Option<&str>) {
        let problem = self.node.problem();
        if problem != before {
            match problem {
                Some(problem) => tracing::warn!("{problem}"),
                None => {
                    let Node {
                        name, addresses, ..
                    } = self.node.node();
                    tracing::info!(
                        ?addresses,
                        "the Node object {name} says all there is to know"
                    );
                }
            }
        }
        let unaddressed = problem.filter(|_| self.node.has_no_address());
        self.servers.node_addresses.set(unaddressed);
    }
}
