//! Random packets on random nodes: the kernel's programs, and the same pipeline in memory, agree
//! with the model on each packet.

use std::{
    collections::BTreeMap,
    env,
    hash::{BuildHasher as _, RandomState},
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use lb_common::{abi::plan_flag, trace::Filter, verdict::Reason};
use lb_oracle::{
    Choices, MemoryNode,
    walk::{node, walk},
};

use super::{
    service::ServiceSpec,
    world::{World, world},
};

/// The number of nodes that are the same in every run, and of packets on each node.
const NODES: u64 = 60;
const PACKETS: usize = 250;

/// The number of nodes that are new in each run.
const FRESH_NODES: u64 = 30;
/// The same in memory, where nodes cost little.
const NODES_IN_MEMORY: u64 = 300;

/// Set to a seed that a failure names, it makes the test send only that node's packets. Which of
/// several endpoints the kernel chooses is still random.
const SEED_VARIABLE: &str = "NODE_LB_ORACLE_SEED";

/// Reasons that random packets must reach, because what they never reach is not compared.
const REACHED: [Reason; 16] = [
    Reason::NotService,
    Reason::StrayReset,
    Reason::ReplyToStack,
    Reason::LaterHook,
    Reason::Opened,
    Reason::ToEndpoint,
    Reason::ToClient,
    Reason::IcmpError,
    Reason::NoEndpoints,
    Reason::NoLocalEndpoints,
    Reason::SourceRange,
    Reason::NoRoute,
    Reason::TimeExceeded,
    Reason::TooBig,
    Reason::FollowedFragment,
    Reason::UnknownFragment,
];

#[test]
fn the_kernel_does_what_the_model_says() {
    world(|world| {
        let mut reasons = BTreeMap::new();
        for seed in 0..NODES {
            add(&mut reasons, compare(world, seed));
        }
        assert_reached(&reasons);
    });
}

/// Whatever they log, and they log all of it here.
#[test]
fn programs_that_trace_do_what_the_model_says() {
    world(|world| {
        world.trace(Filter::default(), u32::MAX, Duration::from_secs(3600));
        let mut reasons = BTreeMap::new();
        for seed in 0..NODES {
            add(&mut reasons, compare(world, seed));
            world.lines();
        }
        assert_reached(&reasons);
        let traced = world.traced();
        assert_eq!(u64::from(traced.taken), traced.seen);
        assert!(traced.lines > 5 * traced.seen, "{traced:?}");
    });
}

#[test]
fn the_kernel_does_what_the_model_says_of_packets_never_seen_before() {
    world(|world| {
        for seed in fresh_seeds(FRESH_NODES) {
            compare(world, seed);
        }
    });
}

#[test]
fn the_pipeline_in_memory_does_what_the_model_says() {
    let mut reasons = BTreeMap::new();
    for seed in (0..NODES).chain(fresh_seeds(NODES_IN_MEMORY)) {
        let mut choices = Choices::of_seed(seed);
        let mut model = node(&mut choices);
        let mut memory = MemoryNode::new(&model);
        let name = format!("seed {seed}");
        let found = walk(&mut memory, &mut model, &mut choices, PACKETS, &name);
        add(&mut reasons, found);
    }
    assert_reached(&reasons);
}

/// Otherwise the model would not notice that chance decides where a rule should.
#[test]
fn nodes_that_break_a_rule_are_found_out() {
    type Break = fn(&mut ServiceSpec);
    let rules: [(&str, Break); 5] = [
        ("session affinity", |service| service.affinity_seconds = 0),
        ("Maglev's tables", |service| service.maglev = false),
        ("topology hints", |service| {
            service.flags &= !plan_flag::HINTED
        }),
        ("externalTrafficPolicy", |service| {
            service.flags &= !plan_flag::EXTERNAL_LOCAL;
        }),
        ("source ranges", |service| service.source_ranges.clear()),
    ];
    for (rule, break_it) in rules {
        let is_found_out = |seed| {
            let mut broken = node(&mut Choices::of_seed(seed));
            broken.services.iter_mut().for_each(break_it);
            let mut memory = MemoryNode::new(&broken);
            let mut choices = Choices::of_seed(seed);
            let mut model = node(&mut choices);
            let walk = || walk(&mut memory, &mut model, &mut choices, PACKETS, rule);
            catch_unwind(AssertUnwindSafe(walk)).is_err()
        };
        assert!((0..NODES).any(is_found_out), "nobody misses {rule}");
    }
}

/// Sends a node's packets, and counts the reasons.
pub fn compare(world: &mut World, seed: u64) -> BTreeMap<Reason, usize> {
    let mut choices = Choices::of_seed(seed);
    let mut model = node(&mut choices);
    world.become_like(&model);
    let name = format!("seed {seed}");
    walk(world, &mut model, &mut choices, PACKETS, &name)
}

/// New seeds, or the one that is asked for.
fn fresh_seeds(count: u64) -> Vec<u64> {
    if let Ok(seed) = env::var(SEED_VARIABLE) {
        return vec![seed.parse().expect("the seed is a number")];
    }
    let first = RandomState::new().hash_one(());
    println!("{SEED_VARIABLE}={first} and the {count} seeds from there on");
    (0..count).map(|n| first.wrapping_add(n)).collect()
}

fn add(sum: &mut BTreeMap<Reason, usize>, more: BTreeMap<Reason, usize>) {
    for (reason, count) in more {
        *sum.entry(reason).or_default() += count;
    }
}

#[track_caller]
fn assert_reached(reasons: &BTreeMap<Reason, usize>) {
    for reason in REACHED {
        assert!(reasons.contains_key(&reason), "{reason:?} in {reasons:?}");
    }
}
