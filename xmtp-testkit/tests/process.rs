//! The driver of child processes.
#![cfg(unix)]

use std::time::Duration;

use xmtp_testkit::process::{Child, role, say};

const DEADLINE: Duration = Duration::from_secs(30);

/// Says numbers for ever, or one word, as its role has it.
fn play(role: &str) {
    match role {
        "counter" => (0..u64::MAX).for_each(|n| say(&n.to_string())),
        "speaker" => say(&std::env::var("WORD").expect("a word")),
        other => panic!("no role {other}"),
    }
}

#[test]
fn a_child_says_lines_and_ends() {
    if let Some(role) = role() {
        return play(&role);
    }
    let word = [("WORD", "hello there")];
    let mut child = Child::spawn("a_child_says_lines_and_ends", "speaker", &word);
    assert_eq!(child.wait_for("hello", DEADLINE), "hello there");
    assert!(child.wait().success());
}

#[test]
fn a_stopped_child_goes_on_and_a_killed_one_does_not() {
    if let Some(role) = role() {
        return play(&role);
    }
    let name = "a_stopped_child_goes_on_and_a_killed_one_does_not";
    let mut child = Child::spawn(name, "counter", &[]);
    assert_eq!(child.next_line(DEADLINE), "0");
    for _ in 0..3 {
        child.stop();
        #[cfg(target_os = "linux")]
        assert_eq!(state(child.id()), "T");
        child.cont();
    }
    // More than a pipe holds, so that it must have gone on.
    for n in 1..20_000u64 {
        assert_eq!(child.next_line(DEADLINE), n.to_string());
    }
    child.kill();
    child.kill();
    assert!(!child.wait().success());
}

/// Reads the state of a process as the system has it.
#[cfg(target_os = "linux")]
fn state(id: u32) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).expect("the process is there");
    let (_, after_name) = stat.rsplit_once(") ").expect("the name is in parentheses");
    after_name.split(' ').next().unwrap_or_default().to_owned()
}
