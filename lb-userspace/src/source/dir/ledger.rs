//! Which file each object comes from, and what changes when files change.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    mem,
    path::{Path, PathBuf},
    sync::Arc,
};

use lb_objects::{Object, ObjectRef, Problem, Refused, text::Broken};

use super::{super::Event, document::Manifest};

/// The last good objects of every file, and which file provides each object.
///
/// Files are identified by their full paths, which within a directory sort like their names.
#[derive(Debug, Default)]
pub struct Ledger {
    files: BTreeMap<Arc<Path>, File>,
    /// The files that define an object, in order of precedence.
    claims: HashMap<ObjectRef, Vec<Claim>>,
}

/// The new state of a file.
#[derive(Debug)]
pub enum Update {
    Parsed(Manifest),
    /// It cannot be used; its last good objects stay.
    Broken(Broken),
    Gone,
}

#[derive(Debug, Default)]
struct File {
    objects: Vec<Object>,
    /// What is wrong with the file itself.
    problems: Vec<Problem>,
    /// These and the objects that other files override, as last reported.
    reported: Vec<Problem>,
}

#[derive(Debug)]
struct Claim {
    file: Arc<Path>,
    object: Object,
}

impl Ledger {
    /// Applies changes of several files together, so that an object that moves between them never
    /// vanishes. Returns the events for the store.
    pub fn update(&mut self, updates: Vec<(PathBuf, Update)>) -> Vec<Event> {
        let mut before: BTreeMap<ObjectRef, Option<Object>> = BTreeMap::new();
        let mut touched: BTreeSet<Arc<Path>> = BTreeSet::new();
        for (path, update) in updates {
            let path: Arc<Path> = path.into();
            touched.insert(path.clone());
            let old = self
                .files
                .get_mut(&path)
                .map(|file| mem::take(&mut file.objects));
            let old = old.unwrap_or_default();
            let (objects, problems) = match update {
                Update::Parsed(manifest) => settle(&old, manifest, &path),
                Update::Broken(broken) => {
                    let problem = problem(&path, Refused::File, broken.line, broken.message);
                    (old.clone(), vec![problem])
                }
                Update::Gone => (Vec::new(), Vec::new()),
            };
            for reference in old.iter().chain(&objects).map(Object::reference) {
                touched.extend(
                    self.claims(&reference)
                        .iter()
                        .map(|claim| claim.file.clone()),
                );
                let winner = self.winner(&reference).cloned();
                before.entry(reference).or_insert(winner);
            }
            for object in &old {
                self.withdraw(&path, &object.reference());
            }
            for object in &objects {
                self.claim(&path, object);
            }
            let file = self.files.entry(path).or_default();
            file.objects = objects;
            file.problems = problems;
        }

        let mut events = Vec::new();
        for (reference, before) in before {
            match self.winner(&reference) {
                after if after == before.as_ref() => {}
                Some(object) => events.push(Event::Apply(object.clone())),
                None => events.push(Event::Delete(reference)),
            }
        }
        events.extend(touched.into_iter().filter_map(|path| self.report(&path)));
        events
    }

    /// All objects in force, sorted by reference.
    pub fn objects(&self) -> Vec<Object> {
        let winners = self
            .claims
            .iter()
            .map(|(reference, claims)| (reference, &claims[0].object));
        let winners: BTreeMap<_, _> = winners.collect();
        winners.into_values().cloned().collect()
    }

    /// All problems, sorted by file.
    pub fn problems(&self) -> Vec<Problem> {
        let reported = self.files.values().flat_map(|file| &file.reported);
        reported.cloned().collect()
    }

    /// Whether a file has objects.
    pub fn has_content(&self, path: &Path) -> bool {
        self.files
            .get(path)
            .is_some_and(|file| !file.objects.is_empty())
    }

    fn claims(&self, reference: &ObjectRef) -> &[Claim] {
        self.claims
            .get(reference)
            .map(Vec::as_slice)
            .unwrap_or_default()
    }

    fn winner(&self, reference: &ObjectRef) -> Option<&Object> {
        self.claims(reference).first().map(|claim| &claim.object)
    }

    fn claim(&mut self, path: &Arc<Path>, object: &Object) {
        let claim = Claim {
            file: path.clone(),
            object: object.clone(),
        };
        match self.claims.get_mut(&object.reference()) {
            Some(claims) => {
                let place = claims.partition_point(|known| known.file < claim.file);
                claims.insert(place, claim);
            }
            None => drop(self.claims.insert(object.reference(), vec![claim])),
        }
    }

    fn withdraw(&mut self, path: &Path, reference: &ObjectRef) {
        let Some(claims) = self.claims.get_mut(reference) else {
            return;
        };
        claims.retain(|claim| *claim.file != *path);
        if claims.is_empty() {
            self.claims.remove(reference);
        }
    }

    /// All problems of a file, if they differ from those last reported.
    fn report(&mut self, path: &Arc<Path>) -> Option<Event> {
        let file = self.files.get(path)?;
        let mut problems = file.problems.clone();
        for object in &file.objects {
            let reference = object.reference();
            let winner = &self.claims(&reference)[0].file;
            if winner != path {
                let message = format!("is also in {}, which comes first", winner.display());
                problems.push(Problem {
                    object: Some(reference),
                    ..problem(path, Refused::Duplicate, None, message)
                });
            }
        }

        let file = self.files.get_mut(path)?;
        let changed = file.reported != problems;
        if changed {
            for problem in problems
                .iter()
                .filter(|problem| !file.reported.contains(problem))
            {
                tracing::warn!("{problem}");
            }
            file.reported.clone_from(&problems);
        }
        if file.objects.is_empty() && problems.is_empty() {
            self.files.remove(path);
        }
        changed.then(|| Event::Problems {
            origin: path.display().to_string(),
            problems,
        })
    }
}

/// The objects of a file, each once. Invalid ones are in their last good version.
fn settle(old: &[Object], manifest: Manifest, path: &Path) -> (Vec<Object>, Vec<Problem>) {
    let located = manifest.problems.into_iter().map(|problem| Problem {
        file: Some(path.to_owned()),
        ..problem
    });
    let mut problems: Vec<_> = located.collect();
    let mut objects = Vec::with_capacity(manifest.objects.len());
    let mut seen = std::collections::HashSet::new();
    for object in manifest.objects {
        let reference = object.reference();
        if seen.contains(&reference) {
            let message = "is in this file more than once, and the first one counts".to_owned();
            problems.push(Problem {
                object: Some(reference),
                ..problem(path, Refused::Duplicate, None, message)
            });
            continue;
        }
        seen.insert(reference);
        objects.push(object);
    }

    if !manifest.refused.is_empty() {
        let refused: BTreeSet<_> = manifest.refused.into_iter().collect();
        let kept = old.iter().filter(|object| {
            let reference = object.reference();
            refused.contains(&reference) && !seen.contains(&reference)
        });
        objects.extend(kept.cloned());
    }
    (objects, problems)
}

fn problem(path: &Path, refused: Refused, line: Option<u64>, message: String) -> Problem {
    Problem {
        refused,
        object: None,
        file: Some(path.to_owned()),
        line,
        message,
    }
}
