//! What happens to a watched directory, and what the source makes of it.

use std::{
    fs,
    io::Write,
    os::unix::fs::{PermissionsExt, symlink},
    time::{Duration, Instant},
};

use lb_objects::Kind;
use node_lb::source::Event;
use tokio::time;

use crate::support::{Dir, Watched, service};

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

    // As vim does: swap file, probe, backup, new file, slowly. A busy machine may take seconds for
    // that. Then the file rightly counts as deleted, and the test tries again.
    let attempt = 'attempts: {
        for attempt in 3..=50 {
            watched.later.clear();
            dir.write(".web.yaml.swp", "b0VIM 9.1");
            dir.write("4913", "");
            fs::remove_file(dir.path().join("4913")).unwrap();
            let away = Instant::now();
            dir.rename("web.yaml", "web.yaml~");
            time::sleep(Duration::from_millis(120)).await;
            let ip = format!("10.96.0.{attempt}");
            dir.write("web.yaml", &service("web", &ip));
            let gap = away.elapsed();
            watched
                .until(|w| w.cluster_ip("web").as_deref() == Some(&ip))
                .await;
            if gap < Duration::from_millis(250) {
                break 'attempts attempt;
            }
        }
        panic!("this machine is too busy to save a file within 250 ms");
    };
    assert!(watched.never_deleted("web"), "attempt {attempt}");
    assert!(watched.problems().is_empty());
}

#[tokio::test]
async fn a_file_is_read_when_its_writer_is_done() {
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
    time::sleep(Duration::from_millis(700)).await;
    file.write_all(service("a", "10.96.0.3").as_bytes())
        .unwrap();
    time::sleep(Duration::from_millis(350)).await;
    // A change that makes the source look at the file.
    file.set_permissions(fs::Permissions::from_mode(0o600))
        .unwrap();
    time::sleep(Duration::from_millis(350)).await;
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

    // First invalid, and then removed: its objects are gone.
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
    // The new directory is watched now.
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
        && *object.reference().name.name == *"b")
    );
    watched.end().await;
}
