//! Tables that have forgotten everything decide as new ones do, so that results of fuzzing can be
//! repeated.

use lb_common::verdict::Reason;
use node_lb::memory::ProgrammedTables;

use crate::{
    hooks::{Outcome, through},
    scene::Scene,
};

#[test]
fn what_is_forgotten_has_no_effect() {
    for scene in Scene::each() {
        let openings: Vec<_> = (4000..4032).map(|port| scene.opening(port)).collect();
        let run = |tables: &ProgrammedTables| -> Vec<Outcome> {
            openings
                .iter()
                .map(|frame| through(tables, frame))
                .collect()
        };
        let mut tables = scene.tables();
        tables.forget();
        let first = run(&tables);
        assert!(first.iter().any(|outcome| outcome.reason == Reason::Opened));
        tables.set_seconds(7);
        assert_ne!(run(&tables), first, "the flows are there already");
        tables.forget();
        assert_eq!(run(&tables), first);
    }
}
