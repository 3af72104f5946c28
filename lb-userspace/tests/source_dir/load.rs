//! What a single reading returns.

use std::{fs, os::unix::fs::symlink};

use lb_objects::Refused;
use node_lb::source::dir::{DirSource, load};

use crate::support::{Dir, service, slice};

#[test]
fn yaml_and_json_documents_and_lists() {
    let dir = Dir::new();
    dir.write(
        "a.yaml",
        &format!(
            "# two\n---\n{}---\n---\n{}",
            service("a1", "10.96.0.1"),
            slice("a1", 1)
        ),
    );
    dir.write(
        "b.yml",
        "apiVersion: v1\nkind: List\nmetadata: {}\nitems:\n\
         - {apiVersion: v1, kind: Service, metadata: {name: b1}, spec: {clusterIP: 10.96.0.2}}\n\
         - {apiVersion: v1, kind: Secret, metadata: {name: ignored}}\n\
         - {apiVersion: v1, kind: Node, metadata: {name: n1}, unknownField: [1, {x: y}]}\n",
    );
    dir.write(
        "c.json",
        r#"{"kind": "ServiceList", "apiVersion": "v1", "metadata": {}, "items": [
            {"metadata": {"name": "c1"}, "spec": {"clusterIP": "10.96.0.3"}}]}
           {"kind": "NodeList", "items": [{"metadata": {"name": "n2"}}]}"#,
    );
    dir.write("d.yaml", "kind: ConfigMap\ndata: {items: 3}\nitems: {}\n");
    dir.write("e.yaml", "");
    let (objects, problems) = load(dir.path()).unwrap();
    assert_eq!(problems, []);
    let references: Vec<_> = objects.iter().map(|o| o.reference().to_string()).collect();
    assert_eq!(
        references,
        [
            "Service default/a1",
            "Service default/b1",
            "Service default/c1",
            "EndpointSlice default/a1-1",
            "Node n1",
            "Node n2",
        ]
    );
}

#[test]
fn files_that_are_not_manifests_are_not_read() {
    let dir = Dir::new();
    for name in [
        ".a.yaml",
        ".a.yaml.swp",
        "a.yaml~",
        "#a.yaml#",
        ".#a.yaml",
        "4913",
        "a.yaml.tmp",
        "a.txt",
        "yaml",
    ] {
        dir.write(name, "]: broken");
    }
    fs::create_dir(dir.path().join("sub.yaml")).unwrap();
    let (objects, problems) = load(dir.path()).unwrap();
    assert!(objects.is_empty() && problems.is_empty(), "{problems:?}");
}

#[test]
fn broken_files_are_told_with_line_and_cost_only_themselves() {
    let bomb = (1..30).fold("a0: &a0 [x, x, x, x]\n".to_owned(), |text, level| {
        let last = level - 1;
        text + &format!("a{level}: &a{level} [*a{last}, *a{last}, *a{last}, *a{last}]\n")
    });
    let cases: [(&str, &[u8], Option<u64>); 9] = [
        (
            "syntax.yaml",
            b"kind: Service\nmetadata:\n  name: [a\n",
            Some(3),
        ),
        (
            "syntax.json",
            b"{\"kind\": \"Service\",\n \"a\" 1}",
            Some(2),
        ),
        ("scalar.yaml", b"kind: Pod\n---\napiVer", Some(3)),
        ("kindless.json", b"{}\n{\"a\": 1}", Some(1)),
        ("duplicate.yaml", b"kind: Service\nkind: Service\n", Some(2)),
        ("binary.yaml", b"kind: Pod\n\xff\xfe", Some(2)),
        ("bomb.yaml", bomb.as_bytes(), None),
        ("deep.yaml", &[b'['; 100_000], None),
        ("deep.json", &[b'['; 100_000], None),
    ];
    let dir = Dir::new();
    for (name, text, _) in cases {
        fs::write(dir.path().join(name), text).unwrap();
    }
    dir.write("good.yaml", &service("good", "10.96.0.1"));
    symlink("nowhere", dir.path().join("dangling.yaml")).unwrap();
    let large = fs::File::create(dir.path().join("large.yaml")).unwrap();
    large.set_len((64 << 20) + 1).unwrap();

    let (objects, problems) = load(dir.path()).unwrap();
    assert_eq!(objects.len(), 1);
    assert_eq!(problems.len(), cases.len() + 2, "{problems:#?}");
    assert!(
        problems
            .iter()
            .all(|problem| problem.refused == Refused::File)
    );
    for (name, _, line) in cases {
        let path = dir.path().join(name);
        let problem = problems
            .iter()
            .find(|problem| problem.file.as_ref() == Some(&path))
            .unwrap();
        if line.is_some() {
            assert_eq!(problem.line, line, "{problem}");
        }
        assert!(
            problem.to_string().starts_with(&path.display().to_string()),
            "{problem}"
        );
    }
}

#[test]
fn an_invalid_object_does_not_cost_the_others() {
    let addresses = "- addresses: [10.0.0.1]\n".repeat(70_000);
    let dir = Dir::new();
    dir.write(
        "all.yaml",
        &format!(
            "{}---\n{}{addresses}---\n{}---\n{}",
            service("first", "10.96.0.1"),
            slice("huge", 0),
            service("bad", "10.96.0"),
            service("last", "10.96.0.2"),
        ),
    );
    let (objects, problems) = load(dir.path()).unwrap();
    assert_eq!(objects.len(), 2);
    let problems: Vec<_> = problems.iter().map(ToString::to_string).collect();
    let expected = [
        "all.yaml:8: EndpointSlice default/huge-0: endpoints: 70000 endpoints,",
        "all.yaml:70019: Service default/bad: spec.clusterIP: \"10.96.0\" must be an IP address",
    ];
    assert_eq!(problems.len(), 2);
    for (problem, expected) in problems.iter().zip(expected) {
        assert!(problem.contains(expected), "{problem}");
    }
}

#[test]
fn a_directory_must_be_there_at_the_start() {
    let dir = Dir::new();
    let absent = dir.path().join("absent");
    let error = format!("{:#}", DirSource::open(&absent).unwrap_err());
    assert!(error.contains(&absent.display().to_string()), "{error}");
    assert!(error.contains("No such file or directory"), "{error}");
    dir.write("file", "");
    let error = format!("{:#}", load(dir.path().join("file")).unwrap_err());
    assert!(error.contains("Not a directory"), "{error}");
}
