//! Directories of manifests: what one reading gives, and what happens to a watched directory.

mod support;

use std::{fs, os::unix::fs::symlink};

use node_lb::source::{
    Event, Kind, Refused,
    dir::{DirSource, load},
};
use support::{Dir, Watched, service, slice};

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
         - {apiVersion: v1, kind: Pod, metadata: {name: ignored}}\n\
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

#[tokio::test]
async fn changes_arrive() {
    let dir = Dir::new();
    dir.write("web.yaml", &service("web", "10.96.0.1"));
    let mut watched = Watched::start(dir.path()).await;
    assert_eq!(watched.cluster_ip("web"), Some("10.96.0.1".to_owned()));

    dir.write("web.yaml", &service("web", "10.96.0.2"));
    watched
        .until(|w| w.cluster_ip("web").as_deref() == Some("10.96.0.2"))
        .await;
    dir.write(
        "other.json",
        r#"{"kind": "Service", "metadata": {"name": "other"},
        "spec": {"clusterIP": "10.96.0.3"}}"#,
    );
    watched.until(|w| w.has("other")).await;
    fs::remove_file(dir.path().join("web.yaml")).unwrap();
    watched.until(|w| !w.has("web")).await;
    assert!(watched.has("other"));
}

#[tokio::test]
async fn atomic_renames_and_editors_do_not_interrupt() {
    let dir = Dir::new();
    dir.write("web.yaml", &service("web", "10.96.0.1"));
    let mut watched = Watched::start(dir.path()).await;

    // As kubelet, git and most tools write.
    dir.write(".web.yaml.tmp", &service("web", "10.96.0.2"));
    dir.rename(".web.yaml.tmp", "web.yaml");
    watched
        .until(|w| w.cluster_ip("web").as_deref() == Some("10.96.0.2"))
        .await;

    // As vim does: swap file, probe, backup, new file, slowly.
    dir.write(".web.yaml.swp", "b0VIM 9.1");
    dir.write("4913", "");
    fs::remove_file(dir.path().join("4913")).unwrap();
    dir.rename("web.yaml", "web.yaml~");
    tokio::time::sleep(std::time::Duration::from_millis(120)).await;
    dir.write("web.yaml", &service("web", "10.96.0.3"));
    fs::remove_file(dir.path().join("web.yaml~")).unwrap();
    watched
        .until(|w| w.cluster_ip("web").as_deref() == Some("10.96.0.3"))
        .await;
    assert!(watched.never_deleted("web"));
    assert!(watched.problems().is_empty());
}

#[tokio::test]
async fn a_file_is_read_when_its_writer_is_done() {
    use std::io::Write;

    let dir = Dir::new();
    dir.write(
        "all.yaml",
        &format!(
            "{}---\n{}",
            service("a", "10.96.0.1"),
            service("b", "10.96.0.2")
        ),
    );
    let mut watched = Watched::start(dir.path()).await;

    // As `kubectl get > all.yaml` does: empties the file, then takes its time.
    let mut file = fs::File::create(dir.path().join("all.yaml")).unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(700)).await;
    file.write_all(service("a", "10.96.0.3").as_bytes())
        .unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(700)).await;
    file.write_all(format!("---\n{}", service("b", "10.96.0.4")).as_bytes())
        .unwrap();
    drop(file);
    watched
        .until(|w| w.cluster_ip("b").as_deref() == Some("10.96.0.4"))
        .await;
    assert_eq!(watched.cluster_ip("a").as_deref(), Some("10.96.0.3"));
    assert!(watched.never_deleted("a") && watched.never_deleted("b"));
}

#[tokio::test]
async fn a_config_map_mount_is_swapped() {
    let dir = Dir::new();
    let publish = |version: &str, ip: &str| {
        dir.mkdir(version);
        dir.write(&format!("{version}/web.yaml"), &service("web", ip));
        symlink(version, dir.path().join("..data_tmp")).unwrap();
        dir.rename("..data_tmp", "..data");
    };
    publish("..2026_01", "10.96.0.1");
    symlink("..data/web.yaml", dir.path().join("web.yaml")).unwrap();
    let mut watched = Watched::start(dir.path()).await;
    assert_eq!(watched.cluster_ip("web").as_deref(), Some("10.96.0.1"));

    for (version, old, ip) in [
        ("..2026_02", "..2026_01", "10.96.0.2"),
        ("..2026_03", "..2026_02", "10.96.0.3"),
    ] {
        publish(version, ip);
        fs::remove_dir_all(dir.path().join(old)).unwrap();
        watched
            .until(|w| w.cluster_ip("web").as_deref() == Some(ip))
            .await;
    }
    assert!(watched.never_deleted("web"));
}

#[tokio::test]
async fn the_target_of_a_link_changes() {
    let (dir, elsewhere) = (Dir::new(), Dir::new());
    elsewhere.write("real.yaml", &service("web", "10.96.0.1"));
    symlink(
        elsewhere.path().join("real.yaml"),
        dir.path().join("web.yaml"),
    )
    .unwrap();
    let mut watched = Watched::start(dir.path()).await;
    elsewhere.write("real.yaml", &service("web", "10.96.0.2"));
    watched
        .until(|w| w.cluster_ip("web").as_deref() == Some("10.96.0.2"))
        .await;
}

#[tokio::test]
async fn a_broken_file_keeps_its_last_good_objects() {
    let dir = Dir::new();
    dir.write("web.yaml", &service("web", "10.96.0.1"));
    let mut watched = Watched::start(dir.path()).await;

    dir.write("web.yaml", "kind: Service\nspec: {\n");
    watched.until(|w| !w.problems().is_empty()).await;
    assert_eq!(watched.cluster_ip("web").as_deref(), Some("10.96.0.1"));
    let problem = &watched.problems()[0];
    assert!(
        problem.contains("web.yaml:2:") && problem.contains("stay in force"),
        "{problem}"
    );

    dir.write("web.yaml", &service("web", "10.96.0.2"));
    watched.until(|w| w.problems().is_empty()).await;
    assert_eq!(watched.cluster_ip("web").as_deref(), Some("10.96.0.2"));
    assert!(watched.never_deleted("web"));
}

#[tokio::test]
async fn an_invalid_object_keeps_its_last_good_version() {
    let dir = Dir::new();
    let both =
        |web: &str, api: &str| format!("{}---\n{}", service("web", web), service("api", api));
    dir.write("all.yaml", &both("10.96.0.1", "10.96.0.2"));
    let mut watched = Watched::start(dir.path()).await;

    dir.write("all.yaml", &both("10.96.0.999", "10.96.0.3"));
    watched
        .until(|w| w.cluster_ip("api").as_deref() == Some("10.96.0.3"))
        .await;
    assert_eq!(watched.cluster_ip("web").as_deref(), Some("10.96.0.1"));
    assert!(watched.problems()[0].contains("Service default/web"));

    // Invalid and then not there at all: gone.
    dir.write("all.yaml", &service("api", "10.96.0.3"));
    watched.until(|w| !w.has("web")).await;
    assert!(watched.problems().is_empty());
}

#[tokio::test]
async fn the_first_of_two_files_wins_until_it_goes() {
    let dir = Dir::new();
    dir.write("b.yaml", &service("web", "10.96.0.2"));
    let mut watched = Watched::start(dir.path()).await;
    dir.write("a.yaml", &service("web", "10.96.0.1"));
    watched
        .until(|w| w.cluster_ip("web").as_deref() == Some("10.96.0.1"))
        .await;
    watched.until(|w| w.problems().len() == 1).await;
    let problem = watched.problems().remove(0);
    assert!(
        problem.contains("b.yaml: Service default/web: is also in"),
        "{problem}"
    );

    dir.write("b.yaml", &service("web", "10.96.0.3"));
    fs::remove_file(dir.path().join("a.yaml")).unwrap();
    watched
        .until(|w| w.cluster_ip("web").as_deref() == Some("10.96.0.3"))
        .await;
    watched.until(|w| w.problems().is_empty()).await;
    assert!(watched.never_deleted("web"));
}

#[tokio::test]
async fn an_object_moved_between_files_is_never_gone() {
    let dir = Dir::new();
    dir.write("a.yaml", &service("web", "10.96.0.1"));
    let mut watched = Watched::start(dir.path()).await;
    dir.rename("a.yaml", "b.yaml");
    dir.write("c.yaml", &service("done", "10.96.0.2"));
    watched.until(|w| w.has("done")).await;
    fs::remove_file(dir.path().join("c.yaml")).unwrap();
    watched.until(|w| !w.has("done")).await;
    assert!(watched.has("web") && watched.never_deleted("web"));
}

#[tokio::test]
async fn a_vanished_directory_keeps_everything_and_is_found_again() {
    let parent = Dir::new();
    parent.mkdir("manifests");
    parent.write("manifests/web.yaml", &service("web", "10.96.0.1"));
    let mut watched = Watched::start(&parent.path().join("manifests")).await;

    parent.rename("manifests", "elsewhere");
    watched.until(|w| !w.problems().is_empty()).await;
    assert!(
        watched.problems()[0].contains("cannot be listed"),
        "{:?}",
        watched.problems()
    );
    assert!(watched.has("web"));

    parent.mkdir("manifests");
    parent.write("manifests/web.yaml", &service("web", "10.96.0.2"));
    watched
        .until(|w| w.cluster_ip("web").as_deref() == Some("10.96.0.2"))
        .await;
    watched.until(|w| w.problems().is_empty()).await;
    // The new directory is the one being watched now.
    parent.write("manifests/web.yaml", &service("web", "10.96.0.3"));
    watched
        .until(|w| w.cluster_ip("web").as_deref() == Some("10.96.0.3"))
        .await;
    assert!(watched.never_deleted("web"));
}

#[tokio::test]
async fn a_directory_behind_a_link_is_swapped() {
    let parent = Dir::new();
    for (version, ip) in [("v1", "10.96.0.1"), ("v2", "10.96.0.2")] {
        parent.mkdir(version);
        parent.write(&format!("{version}/web.yaml"), &service("web", ip));
    }
    symlink("v1", parent.path().join("current")).unwrap();
    let mut watched = Watched::start(&parent.path().join("current")).await;
    symlink("v2", parent.path().join("next")).unwrap();
    parent.rename("next", "current");
    watched
        .until(|w| w.cluster_ip("web").as_deref() == Some("10.96.0.2"))
        .await;
    parent.write("v2/web.yaml", &service("web", "10.96.0.3"));
    watched
        .until(|w| w.cluster_ip("web").as_deref() == Some("10.96.0.3"))
        .await;
}

#[tokio::test]
async fn the_source_ends_with_its_receiver_and_sends_only_differences() {
    let dir = Dir::new();
    dir.write("a.yaml", &service("a", "10.96.0.1"));
    dir.write("b.yaml", &service("b", "10.96.0.2"));
    let mut watched = Watched::start(dir.path()).await;
    dir.write(
        "a.yaml",
        &format!("{}# a comment\n", service("a", "10.96.0.1")),
    );
    dir.write("b.yaml", &service("b", "10.96.0.3"));
    watched
        .until(|w| w.cluster_ip("b").as_deref() == Some("10.96.0.3"))
        .await;
    let applied = watched
        .later
        .iter()
        .filter(|event| matches!(event, Event::Apply(_)));
    let applied: Vec<_> = applied.collect();
    assert!(
        matches!(applied[..], [Event::Apply(object)] if object.reference().kind == Kind::Service
        && object.reference().name.name == "b")
    );
    watched.end().await;
}
