//! Every fuzzing target over what is known to be sound, over changes of it, and over anything.
//!
//! `XMTP_ROUNDS` is how many hundred inputs each target gets of either kind. With
//! `XMTP_WRITE_CORPUS` set, the sound inputs are written into the corpus.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use proptest::collection::vec;
use proptest::prelude::any;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestRunner};
use xmtp_testkit::fuzz::{TARGETS, Target, run, seeds};

/// Inputs of one round, in inputs.
const ROUND: u32 = 100;

/// The longest input that chance makes, in bytes.
const LONGEST: usize = 512;

/// The most bytes that are changed in a sound input.
const MOST_CHANGES: usize = 4;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz")
}

fn names_in(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let name = |path: PathBuf| Some(path.file_stem()?.to_str()?.to_owned());
    entries
        .filter_map(|entry| name(entry.expect("an entry").path()))
        .collect()
}

fn corpus(target: &Target) -> Vec<Vec<u8>> {
    let entries = fs::read_dir(folder().join("corpus").join(target.name)).expect("a corpus");
    let read = entries.map(|entry| fs::read(entry.expect("an entry").path()).expect("an input"));
    read.collect()
}

fn runner() -> TestRunner {
    let rounds = std::env::var("XMTP_ROUNDS").ok();
    let rounds: u32 = rounds.map_or(1, |rounds| rounds.parse().expect("XMTP_ROUNDS is a number"));
    TestRunner::new(Config {
        cases: rounds * ROUND,
        failure_persistence: None,
        ..Config::default()
    })
}

#[test]
fn every_target_has_a_program_and_a_corpus() {
    let names: BTreeSet<String> = TARGETS
        .iter()
        .map(|target| target.name.to_owned())
        .collect();
    if std::env::var_os("XMTP_WRITE_CORPUS").is_some() {
        for name in &names {
            let corpus = folder().join("corpus").join(name);
            fs::create_dir_all(&corpus).expect("a folder");
            for (number, seed) in seeds(name).into_iter().enumerate() {
                fs::write(corpus.join(format!("sound-{number}")), seed).expect("an input");
            }
        }
    }
    assert_eq!(names_in(&folder().join("fuzz_targets")), names);
    assert_eq!(names_in(&folder().join("corpus")), names);
    let manifest = fs::read_to_string(folder().join("Cargo.toml")).expect("a manifest");
    for name in &names {
        let program = folder()
            .join("fuzz_targets")
            .join(name)
            .with_extension("rs");
        let text = fs::read_to_string(program).expect("a program");
        assert!(text.contains(&format!("fuzz!(\"{name}\")")), "{name}");
        assert!(manifest.contains(&format!("name = \"{name}\"\n")), "{name}");
        assert!(!seeds(name).is_empty(), "{name} has no sound input");
    }
}

#[test]
fn every_target_stands_its_corpus() {
    for target in TARGETS {
        for input in corpus(target).into_iter().chain(seeds(target.name)) {
            run(target.name, &input);
        }
    }
}

#[test]
fn every_target_stands_pieces_and_changes_of_its_corpus() {
    let changes = vec((any::<Index>(), any::<u8>()), 0..=MOST_CHANGES);
    let input = (any::<Index>(), any::<Index>(), changes);
    for target in TARGETS {
        let corpus: Vec<_> = corpus(target)
            .into_iter()
            .chain(seeds(target.name))
            .collect();
        let ran = runner().run(&input, |(which, end, changes)| {
            let mut bytes = which.get(&corpus).clone();
            for (place, byte) in changes {
                let place = place.index(bytes.len().max(1));
                if let Some(old) = bytes.get_mut(place) {
                    *old = byte;
                }
            }
            // Mostly whole, because a piece fails early.
            let end = end.index(2 * bytes.len() + 1);
            bytes.truncate(end);
            run(target.name, &bytes);
            Ok(())
        });
        ran.unwrap_or_else(|failure| panic!("{target:?}: {failure}"));
    }
}

#[test]
fn every_target_stands_any_bytes() {
    for target in TARGETS {
        let ran = runner().run(&vec(any::<u8>(), 0..LONGEST), |bytes| {
            run(target.name, &bytes);
            Ok(())
        });
        ran.unwrap_or_else(|failure| panic!("{target:?}: {failure}"));
    }
}
