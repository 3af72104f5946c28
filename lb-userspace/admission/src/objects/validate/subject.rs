//! Rules for subjects.

use lb_objects::{kubernetes::field, quoted};

use super::{Path, at_most, each, label, name_or_any, subdomain};
use crate::{
    objects::{finding::Findings, rule::SubjectSpec},
    schema::Source,
};

/// The supported kinds of subjects.
pub const KINDS: [&str; 5] = ["Any", "CIDR", "Namespace", "ServiceAccount", "Workload"];

pub fn subject(path: &Path, spec: &SubjectSpec, findings: &mut Findings) -> Option<Source> {
    // There must be exactly the part that the kind names.
    let parts = [
        ("cidr", "CIDR", spec.cidr.is_some()),
        ("namespace", "Namespace", spec.namespace.is_some()),
        (
            "serviceAccount",
            "ServiceAccount",
            spec.service_account.is_some(),
        ),
        ("workload", "Workload", spec.workload.is_some()),
    ];
    if !KINDS.contains(&spec.kind.as_str()) {
        findings.unsupported(&path.field("kind"), &spec.kind, &KINDS);
        return None;
    }
    for (part, kind, is_given) in parts {
        match (is_given, spec.kind == kind) {
            (true, false) => {
                let message = format!("must not be given for kind {}", spec.kind);
                findings.error(&path.field(part), message);
            }
            (false, true) => {
                findings.error(&path.field(part), format!("is required for kind {kind}"));
            }
            _ => {}
        }
    }
    match spec.kind.as_str() {
        "Any" => Some(Source::Any),
        "CIDR" => network(&path.field("cidr"), spec, findings),
        "Namespace" => {
            let path = path.field("namespace").field("name");
            let part = spec.namespace.as_ref()?;
            Some(Source::Namespace(name_or_any(
                &path, &part.name, label, findings,
            )))
        }
        "ServiceAccount" => {
            let path = path.field("serviceAccount");
            let part = spec.service_account.as_ref()?;
            findings.check(label(&path.field("namespace"), &part.namespace));
            Some(Source::ServiceAccount {
                namespace: part.namespace.clone(),
                name: name_or_any(&path.field("name"), &part.name, subdomain, findings),
            })
        }
        _ => workload(&path.field("workload"), spec, findings),
    }
}

fn network(path: &Path, spec: &SubjectSpec, findings: &mut Findings) -> Option<Source> {
    let part = spec.cidr.as_ref()?;
    let network = findings.check(field::cidr(path.field("cidr"), &part.cidr));
    let except = |path: &Path, text: &String, findings: &mut Findings| {
        let range = findings.check(field::cidr(path, text))?;
        if network.is_some_and(|network| !network.contains(&range)) {
            findings.error(path, format!("{} must be inside of cidr", quoted(text)));
        }
        Some(range)
    };
    let except = each(&path.field("except"), &part.except, except, findings);
    network.map(|network| Source::Network { network, except })
}

fn workload(path: &Path, spec: &SubjectSpec, findings: &mut Findings) -> Option<Source> {
    let part = spec.workload.as_ref()?;
    let labels = path.field("matchLabels");
    if part.match_labels.is_empty() {
        findings.error(&labels, "must have at least one entry");
    }
    at_most(&labels, part.match_labels.len(), findings);
    for (key, value) in part.match_labels.iter().take(super::MAX_ENTRIES) {
        let path = labels.key(key);
        if !is_label_key(key) {
            findings.error(&path, "must be the key of a label");
        } else if !value.is_empty() && !is_qualified(value) {
            findings.error(
                &path,
                format!("{} must be the value of a label", quoted(value)),
            );
        }
    }
    Some(Source::Workload {
        namespace: name_or_any(&path.field("namespace"), &part.namespace, label, findings),
        labels: part.match_labels.clone(),
    })
}

/// A qualified name, with or without a DNS subdomain and a slash before it.
fn is_label_key(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => field::subdomain("", prefix).is_ok() && is_qualified(name),
        None => is_qualified(key),
    }
}

/// 1 to 63 letters, digits, `-`, `_` or `.`, with letters or digits at both ends.
fn is_qualified(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=63).contains(&text.len())
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(inner)
}
