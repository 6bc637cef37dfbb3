//! What released clients recorded, through our own code, with the exact counts of the vectors'
//! `README.md`.
//!
//! openmls reads the system's wall clock, so the suite runs in children of this test with a clock
//! that stands still: one inside the recorded lifetimes, one before and one after them. The clock
//! is a small C library built here and preloaded; without a C compiler the runs fail under `CI`
//! and are skipped elsewhere.

#[path = "vectors/mod.rs"]
mod vectors;

use std::path::PathBuf;
use std::process::Command;

use prost::Message;
use vectors::{Counts, Replay, recorded};
use xmtp_mls::content::{join_transcript_id, joined};
use xmtp_mls::group::{ContextForm, GroupContext};
use xmtp_proto::content::{EncodedContent, GroupUpdated};
use xmtp_proto::id::{GroupId, InboxId};

/// The variable that names the clock of a child, in seconds since the Unix epoch.
const CLOCK: &str = "XMTP_TEST_CLOCK";
/// 2026-11-30 12:00:00 UTC, inside the lifetime of every recorded key package.
const INSIDE: &str = "1796040000";
/// 2026-11-30 08:35:00 UTC, before the first of them begins.
const BEFORE: &str = "1796027700";
/// 2027-02-22 10:08:22 UTC, after the last of them has ended.
const AFTER: &str = "1803290902";

#[test]
fn recorded_vectors_pass_with_a_clock_inside_the_lifetimes() {
    under_clock(
        "recorded_vectors_pass_with_a_clock_inside_the_lifetimes",
        INSIDE,
        inside,
    );
}

#[test]
fn a_late_clock_blocks_exactly_the_commits_with_an_add() {
    under_clock(
        "a_late_clock_blocks_exactly_the_commits_with_an_add",
        AFTER,
        late,
    );
}

#[test]
fn an_early_clock_blocks_the_same_commits_as_not_yet_valid() {
    under_clock(
        "an_early_clock_blocks_the_same_commits_as_not_yet_valid",
        BEFORE,
        early,
    );
}

#[test]
fn recorded_contexts_parse() {
    let contexts = recorded().contexts();
    assert_eq!(contexts.len(), 24);
    for (kind, extensions) in &contexts {
        let context = GroupContext::read(extensions).unwrap();
        assert_eq!(context.form, ContextForm::Extensions);
        assert_eq!(context.conversation_type as i32, *kind);
        assert_eq!(context.dm.is_some(), *kind == 2);
        assert!(context.commit_log_seed().is_some());
        assert!(context.members.contains_key(&context.creator));
    }
}

#[test]
fn recorded_join_transcripts_have_our_ids() {
    let mut found = 0;
    for ((group, _), seen) in recorded().seen() {
        for seen in seen
            .iter()
            .filter(|seen| seen.key.ends_with("_welcome_added"))
        {
            let content = EncodedContent::decode(seen.content.as_slice()).unwrap();
            let updated = GroupUpdated::decode(content.content.as_ref()).unwrap();
            let own = InboxId::parse_hex(&updated.added_inboxes[0].inbox_id).unwrap();
            let adder = InboxId::parse_hex(&updated.initiated_by_inbox_id).unwrap();
            let group = GroupId::try_from(group.as_slice()).unwrap();
            let derived = join_transcript_id(&group, &joined(&own, &adder), seen.sent_ns);
            assert_eq!(derived.idempotency_key, seen.key);
            assert_eq!(derived.content, content);
            assert_eq!(derived.id.as_bytes().as_slice(), seen.id);
            found += 1;
        }
    }
    assert_eq!(found, 11);
}

fn inside() {
    let counts = Replay::new(recorded()).run();
    assert_eq!(
        counts,
        Counts {
            key_packages: 12,
            welcomes_opened: 24,
            joins: 16,
            commits: 35,
            judged: 37,
            own_removals: 2,
            messages: 35,
            distinct_commits: 23,
            distinct_messages: 20,
            observer_commits: 17,
            observer_messages: 13,
            transcripts: 16,
            dictionary_contexts: 0,
            dictionary_updates: 0,
            expired: 0,
            not_yet: 0,
        }
    );
}

fn late() {
    let counts = Replay::new(recorded()).run();
    let expected = Counts {
        expired: 5,
        not_yet: 0,
        ..outside()
    };
    assert_eq!(counts, expected);
}

fn early() {
    let counts = Replay::new(recorded()).run();
    let expected = Counts {
        expired: 0,
        not_yet: 5,
        ..outside()
    };
    assert_eq!(counts, expected);
}

/// What a replay reaches outside the recorded lifetimes: every join, and each group up to its
/// first commit with an Add.
fn outside() -> Counts {
    Counts {
        welcomes_opened: 24,
        joins: 16,
        commits: 11,
        judged: 13,
        own_removals: 2,
        messages: 21,
        distinct_commits: 7,
        distinct_messages: 10,
        observer_commits: 3,
        observer_messages: 2,
        transcripts: 2,
        ..Counts::default()
    }
}

/// Runs a body under a clock: in a child that runs this same test with the clock preloaded.
fn under_clock(test: &str, seconds: &str, body: fn()) {
    if std::env::var(CLOCK).is_ok_and(|clock| clock == seconds) {
        return body();
    }
    let Some(library) = clock_library(test) else {
        return;
    };
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("LD_PRELOAD", &library)
        .env(CLOCK, seconds)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Builds the clock; `None` where there is no C compiler and nobody insists on one.
fn clock_library(name: &str) -> Option<PathBuf> {
    let library = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("libclock-{name}.so"));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/clock.c");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let built = Command::new(compiler)
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&library)
        .arg(source)
        .arg("-ldl")
        .status();
    if built.is_ok_and(|status| status.success()) {
        return Some(library);
    }
    let is_ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
    assert!(!is_ci, "a C compiler is needed for the fixed clock");
    let skipped = format!("SKIPPED {name}: no C compiler for the fixed clock\n");
    std::io::Write::write_all(&mut std::io::stderr(), skipped.as_bytes()).unwrap();
    None
}
