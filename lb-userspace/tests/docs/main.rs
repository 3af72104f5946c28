//! What the pages of the documentation say about each other and about the chart.

mod commands;
mod named;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use serde_json::Value;
use xtask::docs::{Page, SUMMARY, Summary, code_spans, pages, pages_in, root, slug};

/// What each page about a distribution or a CNI has, so that a reader finds the same at the same
/// place.
const SECTIONS: [&str; 8] = [
    "Tried",
    "API server address",
    "kube-proxy off",
    "Detector",
    "Devices",
    "MTU",
    "Values",
    "Undo",
];

#[test]
fn every_link_leads_somewhere() {
    let pages = pages().unwrap();
    let by_path: BTreeMap<_, _> = pages.iter().map(|page| (&page.path, page)).collect();
    let mut dead = Vec::new();
    for page in &pages {
        for target in page.targets() {
            let leads = match (&target.anchor, by_path.get(&target.path)) {
                (None, _) => root().join(&target.path).exists(),
                (Some(anchor), Some(page)) => page.has_anchor(anchor),
                (Some(_), None) => false,
            };
            if !leads {
                dead.push(format!("{}: {target:?}", page.path.display()));
            }
        }
    }
    assert!(dead.is_empty(), "{}", dead.join("\n"));
}

/// Nobody would find another one on the site.
#[test]
fn the_summary_has_every_page_once() {
    let listed = Summary::read().unwrap().pages().unwrap();
    let listed: Vec<_> = listed.iter().map(|page| &page.path).collect();
    let pages = pages().unwrap();
    let pages: BTreeSet<_> = pages.iter().map(|page| &page.path).collect();
    let mut missing: Vec<_> = pages.iter().filter(|path| !listed.contains(path)).collect();
    missing.retain(|path| path.as_path() != Path::new(SUMMARY));
    assert!(missing.is_empty(), "{SUMMARY} lacks {missing:?}");
    let once: BTreeSet<_> = listed.iter().collect();
    assert_eq!(
        once.len(),
        listed.len(),
        "a page is there twice: {listed:?}"
    );
}

#[test]
fn each_distribution_has_the_same_sections() {
    for page in distributions() {
        assert_eq!(page.headings(2), SECTIONS, "{}", page.path.display());
    }
}

#[test]
fn the_index_has_every_distribution() {
    let index = Page::read("docs/distributions/README.md").unwrap();
    for page in distributions() {
        let name = page.path.file_name().unwrap().to_str().unwrap();
        let row = index
            .prose()
            .any(|line| line.starts_with("| [") && line.contains(&format!("]({name})")));
        assert!(row, "{name} is in no table");
    }
}

/// The page of alerts has a section for each, in their order, and each alert leads to its section.
#[test]
fn each_alert_has_a_section_and_each_section_an_alert() {
    let rules = fs::read_to_string(root().join("deploy/monitoring/rules.yaml")).unwrap();
    let rules: Value = serde_saphyr::from_str(&rules).unwrap();
    let groups = rules["groups"].as_array().unwrap().iter();
    let rules = groups.flat_map(|group| group["rules"].as_array().unwrap());
    let alerts: Vec<_> = rules
        .filter_map(|rule| Some((rule["alert"].as_str()?, &rule["annotations"])))
        .collect();
    let page = Page::read("docs/alerts.md").unwrap();
    let names: Vec<_> = alerts.iter().map(|(name, _)| *name).collect();
    assert_eq!(page.headings(2), names);
    for (name, annotations) in alerts {
        let section = page
            .prose()
            .skip_while(|line| *line != format!("## {name}"));
        let section: Vec<_> = section
            .skip(1)
            .take_while(|line| !line.starts_with("## "))
            .collect();
        for part in ["**Meaning.**", "**Look at**", "**Do.**"] {
            let told = section.iter().any(|line| line.starts_with(part));
            assert!(told, "{name} lacks {part}");
        }
        let runbook = format!("docs/alerts.md#{}", slug(name));
        assert_eq!(annotations["runbook"], runbook, "{name}");
        for text in ["summary", "description"] {
            assert!(annotations[text].is_string(), "{name} lacks {text}");
        }
    }
}

/// The chart's schema knows the values of each page. (The settings in `config` are the agent's,
/// whose tests read these pages as well.)
#[test]
fn values_on_the_pages_are_the_charts() {
    let (_, schema) = chart();
    for page in distributions() {
        let mut blocks = page.blocks();
        blocks.retain(|block| block.language == "yaml");
        let [block] = blocks.as_slice() else {
            panic!("{}: {} blocks of values", page.path.display(), blocks.len());
        };
        let values: Value = serde_saphyr::from_str(&block.text).unwrap();
        let unknown = unknown("", &values, &schema);
        assert!(unknown.is_empty(), "{}: {unknown:?}", page.path.display());
    }
}

/// The table in docs/deploy.md has all of the chart's values, and no others.
#[test]
fn every_value_of_the_chart_is_documented() {
    let (values, schema) = chart();
    let page = Page::read("docs/deploy.md").unwrap();
    let rows = page
        .prose()
        .skip_while(|line| *line != "## The chart's values")
        .skip(1)
        .take_while(|line| !line.starts_with("## "))
        .filter(|line| line.starts_with("| `"));
    let documented: BTreeSet<String> = rows
        .flat_map(|row| code_spans(row.split('|').nth(1).unwrap()))
        .collect();
    for name in &documented {
        let pointer = format!("/{}", name.replace('.', "/"));
        assert!(values.pointer(&pointer).is_some(), "there is no {name}");
    }
    for value in leaves("", &values, &schema) {
        let covered = documented.iter().any(|name| {
            let rest = value.strip_prefix(name.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        });
        assert!(covered, "{value} is in no row of the table");
    }
}

/// The chart's values and their schema.
fn chart() -> (Value, Value) {
    let chart = root().join("deploy/chart/node-lb");
    let values = fs::read_to_string(chart.join("values.yaml")).unwrap();
    let schema = fs::read(chart.join("values.schema.json")).unwrap();
    (
        serde_saphyr::from_str(&values).unwrap(),
        serde_json::from_slice(&schema).unwrap(),
    )
}

/// The names of values that the schema does not know.
fn unknown(name: &str, value: &Value, schema: &Value) -> Vec<String> {
    if schema.is_null() {
        return vec![name.to_owned()];
    }
    let (Some(fields), true) = (value.as_object(), schema["patternProperties"].is_null()) else {
        return Vec::new();
    };
    let fields = fields.iter();
    fields
        .flat_map(|(field, value)| unknown(&join(name, field), value, &schema["properties"][field]))
        .collect()
}

/// The names of all values; of an object with free fields, its own.
fn leaves(name: &str, value: &Value, schema: &Value) -> Vec<String> {
    let properties = schema["properties"].as_object();
    match (value.as_object(), properties) {
        (Some(fields), Some(properties)) if !fields.is_empty() => fields
            .iter()
            .flat_map(|(field, value)| leaves(&join(name, field), value, &properties[field]))
            .collect(),
        _ => vec![name.to_owned()],
    }
}

fn join(name: &str, field: &str) -> String {
    match name {
        "" => field.to_owned(),
        name => format!("{name}.{field}"),
    }
}

/// The pages about distributions and CNIs, without their index.
fn distributions() -> Vec<Page> {
    let mut all = pages_in("docs/distributions").unwrap();
    all.retain(|page| !page.path.ends_with("README.md"));
    all
}
