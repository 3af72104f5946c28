//! The real kube-proxy (nftables) and node-lb on nodes that look the same, with the same objects,
//! drawn at random. Whatever comes out of one of them must come out of the other, field by field but
//! for what a proxy may choose: an endpoint among those that serve, and its own port.
//!
//! `NODE_LB_DIFFERENTIAL_SEED` repeats a run, `NODE_LB_DIFFERENTIAL_MINUTES` makes it longer, with a
//! new seed.

mod difference;
mod ground;
mod known;
mod message;
mod opening;
mod scene;
mod script;
mod seen;
mod talk;
mod wires;

use std::{
    collections::BTreeMap,
    panic::resume_unwind,
    thread,
    time::{Duration, Instant},
};

use fastrand::Rng;

use self::{
    difference::Difference,
    ground::Twins,
    scene::Scene,
    talk::{Talks, Tally},
};
use super::support::choices;

/// How long a run takes unless told otherwise.
const SHORT: Duration = Duration::from_secs(20);
/// Which hooks see packets from outside first, for half of the time each.
const MODES: [&str; 2] = ["--xdp-mode=native", "--xdp-mode=off"];
/// A rule that the other proxy does not have.
const OTHER_RULE: &str = "--masquerade-all";
/// Conversations with the objects of a scene.
const CONVERSATIONS: usize = 400;
/// Scenes until another rule is noticed, at most.
const SCENES: usize = 20;
/// A kind of difference that has come so often ends a scene: each takes a second, since it is looked at
/// twice.
const OFTEN: usize = 3;

#[test]
fn what_comes_out_of_kube_proxy_comes_out_of_node_lb() {
    let (time, seeds) = choices("DIFFERENTIAL", SHORT, &[1]);
    let seed = seeds[0];
    println!("NODE_LB_DIFFERENTIAL_SEED={seed}");
    let mut run = Run {
        twins: Twins::up(&MODES[..1]).unwrap(),
        rng: Rng::with_seed(seed),
        scene: None,
        scenes: 0,
    };
    let mut found = Found::default();
    for mode in MODES {
        if mode != MODES[0] {
            run.twins = run.twins.restart_node_lb(&[mode]).unwrap();
        }
        let began = Instant::now();
        while began.elapsed() < time / MODES.len() as u32 {
            run.scene(&mut found);
        }
    }
    let (tally, scenes) = (&found.tally, run.scenes);
    println!("{tally:?} in {scenes} scenes");
    println!("on purpose: {:?}", found.on_purpose);
    for (count, difference) in found.differences.values() {
        println!("{count} times {difference}");
    }
    let kinds = found.differences.len();
    assert_eq!(kinds, 0, "kinds of differences, which are above");
    assert!(tally.served > tally.conversations / 20, "{tally:?}");

    run.twins = run.twins.restart_node_lb(&[OTHER_RULE]).unwrap();
    let mut found = Found::default();
    // Few Services of a scene may have what the rule is about.
    for _ in 0..SCENES {
        if found.differences.is_empty() {
            run.scene(&mut found);
        }
    }
    assert!(
        !found.differences.is_empty(),
        "nobody notices {OTHER_RULE}: {:?}",
        found.tally
    );
}

struct Run {
    twins: Twins,
    rng: Rng,
    scene: Option<Scene>,
    scenes: u32,
}

/// What conversations have shown.
#[derive(Default)]
struct Found {
    tally: Tally,
    /// Differences of each kind: how many there were, and the first one.
    differences: BTreeMap<String, (usize, Difference)>,
    /// How often a rule of [`known`] has allowed one.
    on_purpose: BTreeMap<&'static str, usize>,
}

impl Run {
    /// Puts new objects in force, and holds conversations until there are enough, or until a kind of
    /// difference has come often. The processor that sends deals with all that follows, in order.
    fn scene(&mut self, found: &mut Found) {
        thread::scope(|scope| {
            let talks = scope.spawn(|| {
                wires::stay_on_one_processor().unwrap();
                self.hold_talks(found);
            });
            talks.join().unwrap_or_else(|panic| resume_unwind(panic));
        });
    }

    fn hold_talks(&mut self, found: &mut Found) {
        self.scenes += 1;
        let before = self.scene.take();
        let scene = Scene::set(&self.twins, before, self.scenes, &mut self.rng).unwrap();
        let mut talks = Talks::new(&self.twins, &scene, &mut self.rng);
        for _ in 0..CONVERSATIONS {
            let Some(difference) = talks.hold().unwrap() else {
                continue;
            };
            if let Some(rule) = known::rule(&difference) {
                *found.on_purpose.entry(rule).or_default() += 1;
                continue;
            }
            let entry = found.differences.entry(difference.kind());
            let (count, _) = entry.or_insert((0, difference));
            *count += 1;
            if *count > OFTEN {
                break;
            }
        }
        found.tally += talks.tally;
        self.scene = Some(scene);
    }
}
