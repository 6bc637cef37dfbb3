//! The published suite, plain and encrypted.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};
use xmtp_core::storage::{OpenError, Storage};
use xmtp_core::testing::conformance::{self, CASES, Engine, Needs};
use xmtp_storage_sqlite::{DatabaseKey, SqliteStorage};

struct Sqlite {
    name: &'static str,
    key: Option<DatabaseKey>,
}

impl Engine for Sqlite {
    fn name(&self) -> &'static str {
        self.name
    }

    fn open(&self, dir: &Path) -> Result<Arc<dyn Storage>, OpenError> {
        let options = SqliteStorage::options(dir.join("suite.db"));
        let options = match &self.key {
            Some(key) => options.key(key.clone()),
            None => options.plain(),
        };
        Ok(options.open()?)
    }

    fn child(&self) -> Option<Command> {
        std::env::current_exe().ok().map(Command::new)
    }
}

/// covers: STR-070, STR-077, STR-063, EXT-004
fn main() {
    let engines = [
        Sqlite {
            name: "plain",
            key: None,
        },
        Sqlite {
            name: "encrypted",
            key: Some(DatabaseKey::new([0x5a; 32])),
        },
    ];
    if engines.iter().any(|engine| conformance::child_main(engine)) {
        return;
    }
    let mut trials = Vec::new();
    for engine in engines.map(Arc::new) {
        for ((name, trial), case) in conformance::trials(engine).into_iter().zip(CASES) {
            let run = move || trial().map(drop).map_err(Failed::from);
            // This engine never excludes other processes: counted as ignored.
            let excludes = case.needs == Needs::Exclusive;
            trials.push(Trial::test(name, run).with_ignored_flag(excludes));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
