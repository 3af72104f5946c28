//! Shares over virtual time.

use std::time::{Duration, Instant};

use lb_objects::{
    EndpointSlice, Node, Object, Service,
    kubernetes::{Outcome, translate_json},
};
use proptest::{collection::vec, prelude::*};
use serde_json::{Value, json};

use super::*;
use crate::plan::{LocalNode, PlanOptions, plan};

/// A Service of one port while its endpoints change and time passes. Endpoints are numbers.
struct Bench {
    starts: SlowStarts,
    now: Instant,
    /// Of the slow start; 0 for none.
    seconds: u64,
    weights: &'static str,
    ready: Vec<u8>,
    plan: Option<ServicePlan>,
}

impl Bench {
    /// The Service is new, and has these endpoints.
    fn new(seconds: u64, ready: &[u8]) -> Self {
        let mut bench = Self {
            starts: SlowStarts::default(),
            now: Instant::now(),
            seconds,
            weights: "",
            ready: Vec::new(),
            plan: None,
        };
        bench.become_ready(ready);
        bench
    }

    /// Has these endpoints ready from now on, and no others; returns their weights.
    fn become_ready(&mut self, ready: &[u8]) -> Vec<u16> {
        self.ready = ready.to_vec();
        self.plan()
    }

    /// Plans the Service and returns the weights of its ready endpoints.
    fn plan(&mut self) -> Vec<u16> {
        let mut planned = self.planned();
        self.starts
            .follow(self.plan.as_ref(), &mut planned, self.now);
        let mut again = self.planned();
        self.starts.apply(&mut again);
        assert_eq!(again, planned);
        self.plan = Some(planned);
        self.weights()
    }

    fn weights(&self) -> Vec<u16> {
        let plan = self.plan.as_ref().unwrap();
        plan.ports[0].endpoints.weights().to_vec()
    }

    /// Lets time pass, and plans the Service if that makes it due.
    fn after(&mut self, time: Duration) -> Vec<u16> {
        self.now += time;
        for service in self.starts.due(self.now) {
            assert_eq!(&*service.name, "web");
            self.plan();
        }
        assert_eq!(self.starts.due(self.now), BTreeSet::new());
        self.weights()
    }

    /// The same after each of so many seconds.
    fn seconds<const N: usize>(&mut self) -> [Vec<u16>; N] {
        std::array::from_fn(|_| self.after(Duration::from_secs(1)))
    }

    fn planned(&self) -> ServicePlan {
        let object = |kind, value: Value| {
            let json = serde_json::to_vec(&value).unwrap();
            translate_json(kind, &json).unwrap().translated.outcome
        };
        let service = json!({
            "metadata": {"name": "web", "namespace": "default", "annotations": {
                "node-lb.io/slow-start": self.seconds.to_string(),
                "node-lb.io/weights": self.weights,
            }},
            "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]},
        });
        let endpoint = |number: &u8| json!({"addresses": [format!("10.0.0.{number}")]});
        let slice = json!({
            "metadata": {"name": "web", "namespace": "default",
                "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4",
            "ports": [{"name": "", "port": 8080}],
            "endpoints": self.ready.iter().map(endpoint).collect::<Vec<_>>(),
        });
        let (Outcome::Use(Object::Service(service)), Outcome::Use(Object::EndpointSlice(slice))) = (
            object(lb_objects::Kind::Service, service),
            object(lb_objects::Kind::EndpointSlice, slice),
        ) else {
            panic!("refused");
        };
        let (service, slice): (&Service, &EndpointSlice) = (&service, &slice);
        let node = LocalNode::new(&Node::default(), &[], &PlanOptions::default());
        plan(service, &[slice], &node)
    }
}

#[test]
fn a_new_endpoint_gets_a_tenth_more_with_each_tenth_of_the_time() {
    let mut bench = Bench::new(10, &[1, 2]);
    assert_eq!(bench.become_ready(&[1, 2, 3]), [10, 10, 1]);
    assert_eq!(bench.starts.endpoints(), 1);
    let with = |parts| vec![10, 10, parts];
    assert_eq!(
        bench.seconds(),
        [1, 2, 3, 4, 5, 6, 7, 8, 9].map(with),
        "linear"
    );
    assert!(bench.after(Duration::from_secs(1)).is_empty(), "all alike");
    assert_eq!(bench.starts.endpoints(), 0);
    assert!(bench.after(Duration::from_secs(3600)).is_empty());
}

#[test]
fn whoever_looks_seldom_finds_the_share_that_is_due() {
    let mut bench = Bench::new(10, &[1]);
    bench.become_ready(&[1, 2]);
    assert_eq!(bench.after(Duration::from_millis(7_950)), [10, 7]);
    assert_eq!(bench.after(Duration::from_millis(50)), [10, 8]);
    assert!(bench.after(Duration::from_secs(60)).is_empty());
}

#[test]
fn a_share_is_one_of_the_weight() {
    let mut bench = Bench::new(10, &[1]);
    bench.weights = "10.0.0.1=3, 10.0.0.2=256";
    bench.plan();
    assert_eq!(bench.become_ready(&[1, 2]), [30, 256]);
    assert_eq!(bench.after(Duration::from_secs(9)), [30, 9 * 256]);
    assert_eq!(bench.after(Duration::from_secs(1)), [3, 256]);
}

#[test]
fn the_first_endpoints_of_a_service_have_their_share_at_once() {
    let mut bench = Bench::new(10, &[1, 2, 3]);
    assert!(bench.weights().is_empty());
    bench.become_ready(&[]);
    assert!(bench.become_ready(&[4, 5]).is_empty(), "nor after none");
    assert_eq!(bench.starts.endpoints(), 0);
}

#[test]
fn endpoints_that_are_all_new_at_once_are_equals() {
    let mut bench = Bench::new(10, &[1, 2]);
    assert!(bench.become_ready(&[3, 4]).is_empty());
    // The only old one goes.
    assert_eq!(bench.become_ready(&[3, 5, 6]), [10, 1, 1]);
    assert!(bench.become_ready(&[5, 6]).is_empty());
    assert_eq!(bench.become_ready(&[5, 6, 7]), [10, 10, 1]);
}

#[test]
fn each_endpoint_has_a_start_of_its_own() {
    let mut bench = Bench::new(10, &[1]);
    bench.become_ready(&[1, 2]);
    bench.after(Duration::from_secs(4));
    assert_eq!(bench.become_ready(&[1, 2, 3]), [10, 4, 1]);
    assert_eq!(bench.after(Duration::from_secs(5)), [10, 9, 5]);
    assert_eq!(bench.become_ready(&[2, 3]), [9, 5], "whoever is older");
    assert_eq!(bench.after(Duration::from_secs(1)), [10, 6]);
}

#[test]
fn an_endpoint_that_comes_back_starts_anew() {
    let mut bench = Bench::new(10, &[1, 2]);
    bench.become_ready(&[1, 2, 3]);
    bench.after(Duration::from_secs(5));
    assert!(bench.become_ready(&[1, 2]).is_empty());
    assert_eq!(bench.starts.endpoints(), 0);
    assert_eq!(bench.become_ready(&[1, 2, 3]), [10, 10, 1]);
    bench.become_ready(&[2, 3]);
    assert_eq!(bench.become_ready(&[1, 2, 3]), [1, 10, 1]);
}

#[test]
fn the_annotation_counts_at_once() {
    let mut bench = Bench::new(0, &[1]);
    assert!(bench.become_ready(&[1, 2]).is_empty());
    bench.seconds = 10;
    assert!(bench.plan().is_empty(), "whoever is there is not new");
    bench.become_ready(&[1, 2, 3]);
    bench.after(Duration::from_secs(5));
    bench.seconds = 50;
    assert_eq!(bench.plan(), [10, 10, 1]);
    bench.seconds = 5;
    assert!(bench.plan().is_empty());
    bench.seconds = 50;
    bench.become_ready(&[1, 2, 3, 4]);
    bench.seconds = 0;
    assert!(bench.plan().is_empty());
    assert_eq!(bench.starts.endpoints(), 0);
}

#[test]
fn nothing_is_left_of_a_service_that_is_gone() {
    let mut bench = Bench::new(10, &[1]);
    bench.become_ready(&[1, 2]);
    bench.starts.forget(&bench.planned().service);
    assert_eq!(bench.starts.endpoints(), 0);
    bench.plan = None;
    assert!(bench.plan().is_empty(), "and one of its name is new");
}

proptest! {
    /// However endpoints flap, there is no more to keep than there are endpoints, no more to do than a
    /// step for each tenth of the time and endpoint, and it is over when the time is.
    #[test]
    fn it_is_bounded(
        seconds in 1..100_u64,
        changes in vec((vec(1..6_u8, 0..6), 0..50_u64), 1..20),
    ) {
        let mut bench = Bench::new(seconds, &[1, 2, 3]);
        for (ready, passed) in changes {
            bench.become_ready(&ready);
            let ready = BTreeSet::from_iter(ready);
            prop_assert!(bench.starts.endpoints() <= ready.len());
            bench.after(Duration::from_secs(passed));
        }
        let mut steps = 0;
        for _ in 0..seconds {
            bench.now += Duration::from_secs(1);
            if !bench.starts.due(bench.now).is_empty() {
                steps += 1;
                bench.plan();
            }
        }
        prop_assert!(steps <= u64::from(PARTS) * 5);
        prop_assert_eq!(bench.starts.endpoints(), 0);
        prop_assert!(bench.weights().is_empty());
    }
}
