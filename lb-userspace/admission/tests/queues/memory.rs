//! The memory that decisions allocate.

use lb_admission::{
    classify::{Classifier, Connection, Distinguisher, MAX_DISTINGUISHER, ServiceFrontend},
    configuration::Configuration,
    flow_hash::FlowHasher,
    queueset::{Arrival, Dispatch, Grant, QueueSet},
    retry_after::RetryAfter,
    schema::{DistinguisherMethod, Ingress},
};
use lb_objects::Protocol;

use crate::support::{POLICIES, kind, queue_set};

/// Replaces one connection at a time, while others wait, with timers and lingering seats.
fn churn(set: &mut QueueSet, start: u64, steps: u64) {
    let mut executing = std::collections::VecDeque::with_capacity(64);
    for now in start..start + steps {
        while set.fire(now).is_some() {}
        let linger = now % 3;
        set.arrive(
            Arrival::connection(now * 7919, 1, linger, Some(now + 40)),
            now,
        );
        while let Some(Dispatch { mut grant, .. }) = set.dispatch(now) {
            set.establish(&mut grant, now);
            executing.push_back(grant);
        }
        if executing.len() > 16
            && let Some(oldest) = executing.pop_front()
        {
            set.finish(oldest, now);
        }
    }
    for grant in executing {
        set.finish(grant, start + steps);
    }
}

#[test]
fn decisions_allocate_nothing() {
    for policy in POLICIES {
        let mut set = queue_set(&kind(64, 6, 50), policy);
        set.set_limit(20, 0);
        churn(&mut set, 0, 2000);
        // The caller's own list allocates this.
        let list = allocation_counter::measure(|| {
            std::hint::black_box(std::collections::VecDeque::<Grant>::with_capacity(64));
        });
        let counted = allocation_counter::measure(|| churn(&mut set, 3000, 2000));
        assert_eq!(counted.count_total, list.count_total, "{policy:?}");
        let counted = allocation_counter::measure(|| drop(set.clone()));
        assert!(counted.count_total > 0, "the counter counts");
    }
}

#[test]
fn neither_classification_nor_hashing_allocates() {
    let in_force = Configuration::default().in_force();
    let mut classifier = Classifier::new(&in_force);
    let mut advice = RetryAfter::default();
    let connection = Connection {
        ingress: Ingress::External,
        source: "2001:db8::1".parse().unwrap(),
        identity: None,
        destination: ServiceFrontend {
            namespace: "shop",
            service: "web",
            port: 80,
            protocol: Protocol::Tcp,
            address: None,
        },
    };
    let key = classifier.key(&connection);
    let counted = allocation_counter::measure(|| {
        for second in 0..1000 {
            let schema = &in_force.schemas[classifier.classify(&key)].schema;
            let flow = Distinguisher::by(DistinguisherMethod::SourceIp, &connection);
            for hasher in [FlowHasher::Exact, FlowHasher::Salted([7; 16])] {
                let hash = hasher.hash(&schema.name, flow.text(&mut [0; MAX_DISTINGUISHER]));
                std::hint::black_box(hash);
            }
            advice.reject(second);
        }
    });
    assert_eq!(counted.count_total, 0);
}
