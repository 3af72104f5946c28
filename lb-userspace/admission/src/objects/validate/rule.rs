//! Rules for the rules of flow schemas.

use super::{ANY, Path, destination::destination, each, listed, not_empty, subject::subject};
use crate::{
    objects::{finding::Findings, rule::RuleSpec},
    schema::{Ingress, Rule},
};

const INGRESSES: [&str; 3] = ["External", "Pod", "Node"];

pub fn rule(path: &Path, spec: &RuleSpec, findings: &mut Findings) -> Option<Rule> {
    let at = |name: &str| path.field(name);
    let (subjects, destinations) = (at("subjects"), at("destinations"));
    not_empty(&subjects, &spec.subjects, findings);
    not_empty(&destinations, &spec.destinations, findings);
    let (except_subjects, except_destinations) = (at("exceptSubjects"), at("exceptDestinations"));
    Some(Rule {
        sources: each(&subjects, &spec.subjects, subject, findings),
        except_sources: each(&except_subjects, &spec.except_subjects, subject, findings),
        ingress: listed(
            &at("ingress"),
            spec.ingress.as_deref(),
            |name| name == ANY,
            |path, name: &String, findings| ingress(path, name, findings),
            findings,
        ),
        destinations: each(&destinations, &spec.destinations, destination, findings),
        except_destinations: each(
            &except_destinations,
            &spec.except_destinations,
            destination,
            findings,
        ),
    })
}

fn ingress(path: &Path, name: &str, findings: &mut Findings) -> Option<Ingress> {
    match name {
        "External" => Some(Ingress::External),
        "Pod" => Some(Ingress::Pod),
        "Node" => Some(Ingress::Node),
        other => {
            findings.unsupported(path, other, &INGRESSES);
            None
        }
    }
}
