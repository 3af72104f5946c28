//! The rules and dashboards of `deploy/monitoring`: whether Prometheus and Grafana take them, and the
//! chart hands them on. What they ask for is compared with a live agent in the lab.

use std::{collections::BTreeSet, fs, path::PathBuf};

use serde_json::{Value, json};

use super::{Objects, deploy, helm, list, output, program};

/// Each alert in a staged fault, and all of them in a healthy hour.
#[test]
fn alerts_fire_in_a_fault_and_only_then() {
    let mut promtool = program("promtool");
    promtool.args(["test", "rules"]);
    promtool.arg(deploy().join("monitoring/rules-test.yaml"));
    let said = output(promtool);
    assert!(said.contains("SUCCESS"), "{said}");
}

/// The tests above have a group of each alert's name: without the alert before and after the fault,
/// with it, and it alone, meanwhile.
#[test]
fn each_alert_has_its_staged_fault() {
    let tests = yaml("rules-test.yaml");
    let rules = yaml("rules.yaml");
    let groups = list(&rules["groups"]).flat_map(|group| list(&group["rules"]));
    let alerts: Vec<_> = groups.filter_map(|rule| rule["alert"].as_str()).collect();
    assert!(!alerts.is_empty());
    for alert in alerts {
        let mut groups = list(&tests["tests"]);
        let group = groups.find(|group| group["name"] == alert);
        let group = group.unwrap_or_else(|| panic!("{alert} is not tested"));
        let firing = r#"count by (alertname) (ALERTS{alertstate="firing"})"#;
        let moments = list(&group["promql_expr_test"]).map(|moment| {
            assert_eq!(moment["expr"], firing, "{alert}");
            &moment["exp_samples"]
        });
        let only = json!([{ "labels": format!("{{alertname=\"{alert}\"}}"), "value": 1 }]);
        assert_eq!(
            moments.collect::<Vec<_>>(),
            [&Value::Null, &only, &Value::Null],
            "{alert}"
        );
    }
}

#[test]
fn dashboards_are_whole_and_explain_themselves() {
    let mut known = BTreeSet::new();
    for (file, dashboard) in dashboards() {
        let uid = dashboard["uid"].as_str().unwrap();
        assert!(known.insert(uid.to_owned()), "{file}: {uid} is another's");
        let variables = list(&dashboard["templating"]["list"]);
        let mut kinds = variables.map(|variable| &variable["type"]);
        assert!(kinds.any(|kind| kind == "datasource"), "{file}");
        let mut ids = BTreeSet::new();
        for panel in list(&dashboard["panels"]) {
            let title = panel["title"].as_str().unwrap();
            assert!(ids.insert(panel["id"].as_u64()), "{file}: {title}: id");
            for text in [
                &panel["description"],
                &panel["fieldConfig"]["defaults"]["unit"],
            ] {
                assert!(
                    text.as_str().is_some_and(|text| !text.is_empty()),
                    "{file}: {title}"
                );
            }
            let mut targets = list(&panel["targets"]).peekable();
            assert!(targets.peek().is_some(), "{file}: {title} asks nothing");
            for target in targets {
                assert_eq!(
                    target["datasource"]["uid"], "${datasource}",
                    "{file}: {title}"
                );
            }
        }
        assert!(!ids.is_empty(), "{file}");
    }
}

#[test]
fn the_chart_hands_on_rules_and_dashboards() {
    let objects = helm(&[
        "prometheusRule.enabled=true",
        "prometheusRule.labels.release=prometheus",
        "prometheusRule.groups[0].name=ours",
        "dashboards.enabled=true",
    ]);
    let of =
        |objects: &Objects, kind: &str, name: &str| objects[&(kind.into(), name.into())].clone();
    let rule = of(&objects, "PrometheusRule", "node-lb");
    assert_eq!(rule["metadata"]["labels"]["release"], "prometheus");
    let mut groups = yaml("rules.yaml")["groups"].take();
    groups
        .as_array_mut()
        .unwrap()
        .push(json!({ "name": "ours" }));
    assert_eq!(rule["spec"]["groups"], groups);

    let map = of(&objects, "ConfigMap", "node-lb-dashboards");
    assert_eq!(map["metadata"]["labels"]["grafana_dashboard"], "1");
    let files = map["data"].as_object().unwrap();
    let dashboards = dashboards();
    assert_eq!(files.len(), dashboards.len());
    for (file, dashboard) in dashboards {
        let text = files[&format!("node-lb-{file}")].as_str().unwrap();
        let rendered: Value = serde_json::from_str(text).unwrap();
        assert_eq!(rendered, dashboard, "{file}");
    }
}

/// Rules and dashboards find agents by the job.
#[test]
fn agents_are_scraped_by_the_job_that_rules_ask_for() {
    for (values, job) in [
        (vec!["serviceMonitor.enabled=true"], "node-lb"),
        (
            vec!["serviceMonitor.enabled=true", "scrapeJob=kube-proxy"],
            "kube-proxy",
        ),
    ] {
        let objects = helm(&values);
        let monitor = &objects[&("ServiceMonitor".to_owned(), "node-lb".to_owned())];
        let relabelings = &monitor["spec"]["endpoints"][0]["relabelings"];
        assert_eq!(
            relabelings[0],
            json!({ "targetLabel": "job", "replacement": job })
        );
    }
}

fn yaml(file: &str) -> Value {
    let text = fs::read_to_string(deploy().join("monitoring").join(file)).unwrap();
    serde_saphyr::from_str(&text).unwrap()
}

/// The dashboards by the names of their files.
fn dashboards() -> Vec<(String, Value)> {
    let files = fs::read_dir(deploy().join("monitoring/dashboards")).unwrap();
    let read = |file: PathBuf| {
        let dashboard = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        let name = file.file_name().unwrap();
        (name.to_str().unwrap().to_owned(), dashboard)
    };
    let dashboards: Vec<_> = files.map(|file| read(file.unwrap().path())).collect();
    assert!(!dashboards.is_empty());
    dashboards
}
