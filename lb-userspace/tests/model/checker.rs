//! Runs a scenario in every order of accesses that matters.

use std::{
    cell::Cell,
    env,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr::null,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use loom::{model::Builder, thread};

use crate::{
    invariants,
    mutations::Mutation,
    world::{Setup, World},
};

/// How often one execution may interrupt threads that could go on: [`Scenario::preemptions`],
/// unless `LOOM_MAX_PREEMPTIONS` is set.
pub fn preemptions(usual: usize) -> usize {
    match env::var("LOOM_MAX_PREEMPTIONS") {
        Ok(said) => said.parse().expect("LOOM_MAX_PREEMPTIONS is no number"),
        Err(_) => usual,
    }
}

/// A thread of a scenario, which the checker interrupts.
pub type Thread = Box<dyn FnOnce() + Send>;

/// Threads that run at the same time, and the world in which they do.
pub struct Scenario {
    pub setup: Setup,
    /// The most preemptions in an execution. With this number all executions take seconds.
    pub preemptions: usize,
    /// Fills the world, and returns its threads.
    pub threads: fn(&Arc<World>) -> Vec<Thread>,
    /// What must hold at the end, besides the [`invariants`].
    pub end: fn(&Arc<World>),
}

impl Scenario {
    /// Explores all executions. None may break an invariant.
    pub fn holds(self) {
        let bound = preemptions(self.preemptions);
        let executions = self.explore(None, bound);
        println!("{executions} executions, {bound} preemptions at most");
    }

    /// Explores executions of a broken protocol until one breaks an invariant, which must happen.
    /// Returns what was found.
    pub fn catches(self, mutation: Mutation) -> String {
        let found = catch_unwind(AssertUnwindSafe(|| {
            let bound = preemptions(self.preemptions);
            self.explore(Some(mutation), bound)
        }));
        let panic = match found {
            Ok(executions) => panic!("{mutation:?} was not noticed in {executions} executions"),
            Err(panic) => panic,
        };
        let found = panic.downcast_ref::<String>().expect("a message");
        let violation = found.strip_prefix(VIOLATION);
        violation.expect("a broken invariant").to_owned()
    }

    fn explore(self, mutation: Option<Mutation>, bound: usize) -> usize {
        let mut builder = Builder::new();
        builder.preemption_bound = Some(bound);
        builder.max_branches = 20_000;
        let executions = Arc::new(AtomicUsize::new(0));
        let counted = executions.clone();
        builder.check(move || {
            let execution = counted.fetch_add(1, Ordering::Relaxed);
            self.execute(mutation, execution);
        });
        executions.load(Ordering::Relaxed)
    }

    fn execute(&self, mutation: Option<Mutation>, execution: usize) {
        let world = Arc::new(World::new(&self.setup, mutation));
        WORLD.set(Arc::as_ptr(&world));
        let threads = (self.threads)(&world);
        world.start();
        let spawn = |run: Thread| {
            let world = world.clone();
            let run = move || {
                world.begin_thread();
                run();
            };
            thread::Builder::new().stack_size(STACK).spawn(run).unwrap()
        };
        let threads: Vec<_> = threads.into_iter().map(spawn).collect();
        for thread in threads {
            thread.join().unwrap();
        }
        world.stop();
        (self.end)(&world);
        invariants::check(&world);
        WORLD.set(null());
        let violations = world.violations();
        if !violations.is_empty() && mutation.is_none() {
            println!("{}", world.schedule());
        }
        assert!(
            violations.is_empty(),
            "{VIOLATION}{} (execution {execution})",
            violations.join("; ")
        );
    }
}

const VIOLATION: &str = "broken: ";
/// The stack of a thread, in words.
const STACK: usize = 0x1000;

thread_local! {
    /// The world of the current execution. All of its threads run on one thread of the system.
    static WORLD: Cell<*const World> = const { Cell::new(null()) };
}

/// The world that this thread explores; `None` if it explores none.
pub fn world<'a>() -> Option<&'a World> {
    // SAFETY: the pointer is set only while the world lives.
    unsafe { WORLD.get().as_ref() }
}
