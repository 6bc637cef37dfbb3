//! The suite of the storage seam, plain and encrypted.

use std::env;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};
use xmtp_core::storage::{OpenError, Storage};
use xmtp_core::testing::conformance::{self, CASES, Engine, Needs};
use xmtp_storage_sled::{DatabaseKey, SledStorage};

struct Sled {
    name: &'static str,
    key: Option<DatabaseKey>,
}

impl Engine for Sled {
    fn name(&self) -> &'static str {
        self.name
    }

    fn open(&self, dir: &Path) -> Result<Arc<dyn Storage>, OpenError> {
        let options = SledStorage::options(dir);
        let options = match &self.key {
            Some(key) => options.key(key.clone()),
            None => options.plain(),
        };
        Ok(options.open()?)
    }

    fn child(&self) -> Option<Command> {
        env::current_exe().ok().map(Command::new)
    }
}

/// covers: STR-070, STR-077, STR-063, EXT-004
fn main() {
    let plain = Sled {
        name: "sled",
        key: None,
    };
    let sealed = Sled {
        name: "sled_sealed",
        key: Some(DatabaseKey::new([7; 32])),
    };
    if conformance::child_main(&plain) || conformance::child_main(&sealed) {
        return;
    }
    let mut trials = Vec::new();
    for engine in [Arc::new(plain), Arc::new(sealed)] {
        for ((name, trial), case) in conformance::trials(engine).into_iter().zip(CASES) {
            let run = move || trial().map(drop).map_err(Failed::from);
            // Several processes never share a database of this engine: counted as ignored.
            let is_for_sharing = matches!(case.needs, Needs::Handles | Needs::Shared);
            trials.push(Trial::test(name, run).with_ignored_flag(is_for_sharing));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
