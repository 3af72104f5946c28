//! What helps at the command line: completions and manual pages.

use std::fs;

use crate::{Files, stdout};

#[test]
fn shells_complete_commands_and_options() {
    let files = Files::new(&[]);
    for shell in ["bash", "zsh", "fish"] {
        let output = files.run(&["completions", shell]);
        assert!(output.status.success(), "{output:?}");
        let script = stdout(&output);
        for word in ["node-lb", "explain", "socket"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    // bash reads it, and completes.
    let script = files.run(&["completions", "bash"]);
    fs::write(files.path().join("script"), script.stdout).unwrap();
    let line = "source ./script; COMP_WORDS=(node-lb sta); COMP_CWORD=1; \
                function=$(complete -p node-lb | sed 's/.*-F //; s/ .*//'); \
                $function node-lb sta node-lb; echo ${COMPREPLY[@]}";
    let mut bash = std::process::Command::new("bash");
    let completed = bash.args(["-c", line]).current_dir(files.path()).output();
    assert_eq!(stdout(&completed.unwrap()), "status\n");
}

#[test]
fn every_command_has_a_manual_page() {
    let files = Files::new(&[]);
    let output = files.run(&["man", "share/man1"]);
    assert!(output.status.success(), "{output:?}");
    let page = |name: &str| fs::read_to_string(files.path().join("share/man1").join(name)).unwrap();
    assert!(page("node-lb.1").contains("node\\-lb\\-explain(1)"));
    assert!(page("node-lb-status.1").contains("needs attention"));
    assert!(page("node-lb-admission-simulate.1").contains(".TH"));

    fs::write(files.path().join("file"), "").unwrap();
    let refused = files.run(&["man", "file"]);
    assert_eq!(refused.status.code(), Some(1));
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(told.contains("cannot write manual pages to file"), "{told}");
}
