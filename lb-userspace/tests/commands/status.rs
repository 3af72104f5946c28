//! `node-lb status`, beside an agent.

use node_lb::agent::status::Status;

use crate::{Files, beside_an_agent, stdout};

fn status() -> Status {
    Status {
        node: "worker-1".to_owned(),
        ..Status::default()
    }
}

#[test]
fn the_exit_status_tells_scripts_whether_something_needs_attention() {
    let files = Files::new(&[]);
    let run = |status: &Status, form: &str| {
        beside_an_agent(status, |socket| {
            files.run(&["status", "--socket", socket, "--output", form])
        })
    };
    let output = run(&status(), "table");
    assert_eq!(output.status.code(), Some(0));
    assert!(stdout(&output).starts_with("Nothing needs attention on worker-1.\n"));

    let troubled = Status {
        source_problems: vec!["a.yaml: no such field".to_owned()],
        ..status()
    };
    for form in ["table", "json"] {
        let output = run(&troubled, form);
        assert_eq!(output.status.code(), Some(3), "{form}");
        assert!(stdout(&output).contains("a.yaml: no such field"));
    }
}

#[test]
fn no_agent_is_an_error_that_names_the_socket() {
    let files = Files::new(&[]);
    for more in [&["--watch"][..], &[]] {
        let output = files.run(&[&["status", "--socket", "nobody.sock"], more].concat());
        assert_eq!(output.status.code(), Some(1));
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(told.contains("nobody.sock"), "{told}");
    }
}
