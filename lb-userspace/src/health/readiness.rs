//! `/readyz` by named checks, in the form of Kubernetes' own components.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use hyper::{StatusCode, Uri};

use super::initialization::Initialization;
use crate::{
    http::{Response, has_flag, not_found, query_values, response, text},
    source::health::SourceHealth,
};

/// The path of all checks; a single one is below it.
const READYZ: &str = "/readyz";

type Check = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Named checks, in the order of their registration. The agent is ready when none of them fails.
#[derive(Default)]
pub struct Readiness {
    checks: RwLock<Vec<(String, Check)>>,
    /// The checks that failed at the last request, so that the log says it only once.
    failed: Mutex<BTreeSet<String>>,
}

/// Something that happens once. It belongs to a check that fails until then, or from then on.
#[derive(Clone, Debug, Default)]
pub struct Latch(Arc<AtomicBool>);

impl Latch {
    /// Notes that it has happened.
    pub fn meet(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn is_met(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Something that comes and goes: a check that fails while it does not hold.
#[derive(Clone, Debug, Default)]
pub struct Condition(Arc<Mutex<Option<String>>>);

impl Condition {
    /// It holds from now on, or does not for the reason given.
    pub fn set(&self, problem: Option<&str>) {
        *self.problem() = problem.map(str::to_owned);
    }

    fn check(&self) -> Result<(), String> {
        match &*self.problem() {
            Some(problem) => Err(problem.clone()),
            None => Ok(()),
        }
    }

    fn problem(&self) -> MutexGuard<'_, Option<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Readiness {
    /// Starts with the one check that never fails: `ping`.
    pub fn new() -> Self {
        let readiness = Self::default();
        readiness.add("ping", || Ok(()));
        readiness
    }

    /// Adds a check. If it fails, `check` returns the reason, which is logged.
    pub fn add(
        &self,
        name: impl Into<String>,
        check: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) {
        let mut checks = self.checks.write().unwrap_or_else(PoisonError::into_inner);
        checks.push((name.into(), Box::new(check)));
    }

    /// Adds a check that fails until its latch is met.
    pub fn add_latch(&self, name: impl Into<String>, missing: &'static str) -> Latch {
        let latch = Latch::default();
        let checked = latch.clone();
        self.add(name, move || match checked.is_met() {
            true => Ok(()),
            false => Err(missing.to_owned()),
        });
        latch
    }

    /// Adds a check of something that holds until somebody says otherwise.
    pub fn add_condition(&self, name: impl Into<String>) -> Condition {
        let condition = Condition::default();
        let checked = condition.clone();
        self.add(name, move || checked.check());
        condition
    }

    /// Adds the check `shutdown`, which fails once the latch is met, as kube-apiserver's: nobody
    /// should send anything new to a process that has been told to stop.
    pub fn add_shutdown(&self) -> Latch {
        let latch = Latch::default();
        let checked = latch.clone();
        self.add("shutdown", move || match checked.is_met() {
            true => Err("process is shutting down".to_owned()),
            false => Ok(()),
        });
        latch
    }

    /// Adds one check for each resource, `informer-sync/RESOURCE`. It fails until the resource has
    /// been synchronised once.
    pub fn add_informers(&self, source: &Arc<SourceHealth>) {
        for resource in source.states() {
            let source = source.clone();
            self.add(
                format!("informer-sync/{}", resource.name),
                move || match source.is_synced(resource.name) {
                    true => Ok(()),
                    false => Err("not synchronised yet".to_owned()),
                },
            );
        }
    }

    /// Adds the post-start check `poststarthook/cache-initialization` and waits for it. It is met
    /// when the initialisation is over or after `limit`, whichever comes first (KEP-4568).
    pub fn wait_for(
        &self,
        initialization: Arc<Initialization>,
        limit: Duration,
    ) -> impl Future<Output = ()> + Send + use<> {
        let latch = self.add_latch(
            "poststarthook/cache-initialization",
            "waiting for the first synchronisation of every resource",
        );
        async move {
            if !initialization.wait(limit).await {
                tracing::warn!(
                    "not synchronised within {limit:?}: {}; the agent goes on without them",
                    initialization.missing()
                );
            }
            latch.meet();
        }
    }

    /// The checks that fail, with their reasons, in one line, if any do.
    pub fn problem(&self) -> Option<String> {
        let failed = self.problems();
        (!failed.is_empty()).then(|| failed.join(", "))
    }

    /// The checks that fail, with their reasons.
    pub fn problems(&self) -> Vec<String> {
        let checks = self.checks.read().unwrap_or_else(PoisonError::into_inner);
        let failed = checks.iter().filter_map(|(name, check)| {
            let reason = check().err()?;
            Some(format!("{name} ({reason})"))
        });
        failed.collect()
    }

    /// Calls `tell` with each check's name, and whether it holds.
    pub fn each(&self, mut tell: impl FnMut(&str, bool)) {
        let checks = self.checks.read().unwrap_or_else(PoisonError::into_inner);
        for (name, check) in checks.iter() {
            tell(name, check().is_ok());
        }
    }

    /// Whether [`Self::answer`] handles this path.
    pub fn serves(path: &str) -> bool {
        let below = path.strip_prefix(READYZ);
        below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
    }

    /// Answers `/readyz` and `/readyz/NAME`. `?verbose` lists all checks even if none fails;
    /// `?exclude=NAME`, which may be repeated, leaves a check out.
    pub fn answer(&self, uri: &Uri) -> Response {
        let path = uri.path().strip_prefix(READYZ).unwrap_or_default();
        match path.strip_prefix('/') {
            Some(name) if !name.is_empty() => self.answer_one(name),
            _ => self.answer_all(uri),
        }
    }

    fn answer_one(&self, name: &str) -> Response {
        let checks = self.checks.read().unwrap_or_else(PoisonError::into_inner);
        match checks.iter().find(|(known, _)| known == name) {
            None => not_found(),
            Some((_, check)) => match check() {
                Ok(()) => plain("ok".to_owned()),
                Err(reason) => text(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    format_args!("internal server error: {reason}"),
                ),
            },
        }
    }

    fn answer_all(&self, uri: &Uri) -> Response {
        let mut unknown: BTreeSet<_> = query_values(uri, "exclude").collect();
        let mut told = String::new();
        let mut failed = BTreeSet::new();
        let checks = self.checks.read().unwrap_or_else(PoisonError::into_inner);
        for (name, check) in checks.iter() {
            let line = if unknown.remove(name.as_str()) {
                format!("[+]{name} excluded: ok")
            } else if let Err(reason) = check() {
                failed.insert(format!("{name} ({reason})"));
                format!("[-]{name} failed: reason withheld")
            } else {
                format!("[+]{name} ok")
            };
            writeln!(told, "{line}").expect("a String takes any text");
        }
        if !unknown.is_empty() {
            let names: Vec<_> = unknown.iter().map(|name| format!("{name:?}")).collect();
            let names = names.join(",");
            writeln!(
                told,
                "warn: some health checks cannot be excluded: no matches for {names}"
            )
            .expect("a String takes any text");
        }
        let ready = failed.is_empty();
        self.log(failed);
        match ready {
            false => text(
                StatusCode::INTERNAL_SERVER_ERROR,
                format_args!("{told}readyz check failed"),
            ),
            true if has_flag(uri, "verbose") => plain(format!("{told}readyz check passed\n")),
            true => plain("ok".to_owned()),
        }
    }

    /// Logs which checks fail, if that has changed.
    fn log(&self, failed: BTreeSet<String>) {
        let mut before = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if *before == failed {
            return;
        }
        match failed.is_empty() {
            true => tracing::info!("readyz: all checks hold"),
            false => {
                let names: Vec<_> = failed.iter().map(String::as_str).collect();
                tracing::info!("readyz: failed: {}", names.join(", "));
            }
        }
        *before = failed;
    }
}

fn plain(body: String) -> Response {
    response(StatusCode::OK, "text/plain; charset=utf-8", body)
}
