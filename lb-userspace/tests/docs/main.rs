//! What the pages of the documentation say about each other and about the chart.

mod commands;
mod pages;

use std::{collections::BTreeSet, fs, path::PathBuf};

use pages::{Page, distributions, pages, root};
use serde_json::Value;

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
    let mut dead = Vec::new();
    for page in all_pages() {
        // A link may begin in one line and end in the next.
        let prose = page.prose().collect::<Vec<_>>().join(" ");
        for link in links(&prose) {
            if link.starts_with("http://") || link.starts_with("https://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => page.path.clone(),
                file => page.path.parent().unwrap().join(file),
            };
            let leads = target.exists() && (anchor.is_empty() || has_anchor(target, anchor));
            if !leads {
                dead.push(format!("{}: {link}", page.path.display()));
            }
        }
    }
    assert!(dead.is_empty(), "{}", dead.join("\n"));
}

#[test]
fn each_distribution_has_the_same_sections() {
    for page in distributions() {
        assert_eq!(page.headings(2), SECTIONS, "{}", page.path.display());
    }
}

#[test]
fn the_index_has_every_distribution() {
    let index = Page::read(root().join("docs/distributions/README.md"));
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
    let rules = Page::read(root().join("deploy/monitoring/rules.yaml")).text;
    let rules: Value = serde_saphyr::from_str(&rules).unwrap();
    let groups = rules["groups"].as_array().unwrap().iter();
    let rules = groups.flat_map(|group| group["rules"].as_array().unwrap());
    let alerts: Vec<_> = rules
        .filter_map(|rule| Some((rule["alert"].as_str()?, &rule["annotations"])))
        .collect();
    let page = Page::read(root().join("docs/alerts.md"));
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
        let blocks = page.code("yaml");
        let [block] = blocks.as_slice() else {
            panic!("{}: {} blocks of values", page.path.display(), blocks.len());
        };
        let values: Value = serde_saphyr::from_str(block).unwrap();
        let unknown = unknown("", &values, &schema);
        assert!(unknown.is_empty(), "{}: {unknown:?}", page.path.display());
    }
}

/// The table in docs/deploy.md has all of the chart's values, and no others.
#[test]
fn every_value_of_the_chart_is_documented() {
    let (values, schema) = chart();
    let page = Page::read(root().join("docs/deploy.md"));
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
    let values = Page::read(chart.join("values.yaml")).text;
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

fn all_pages() -> Vec<Page> {
    let directories = [".", "docs", "docs/distributions", "tests/cluster"];
    let all = directories.map(|directory| pages(&root().join(directory)));
    all.into_iter().flatten().collect()
}

/// The targets of `[text](target)`.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let ends = text.split("](").skip(1);
    ends.filter_map(|rest| rest.split([')', ' ']).next())
}

/// The texts in backquotes.
fn code_spans(text: &str) -> Vec<String> {
    let parts = text.split('`').skip(1).step_by(2);
    parts.map(str::to_owned).collect()
}

/// Whether a page has a heading of that name, in the form in which sites for Markdown write it.
fn has_anchor(path: PathBuf, anchor: &str) -> bool {
    let page = Page::read(path);
    let mut headings = (1..=4).flat_map(|level| page.headings(level));
    headings.any(|heading| slug(heading) == anchor)
}

fn slug(heading: &str) -> String {
    let lower = heading.to_lowercase();
    let kept = lower
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}
