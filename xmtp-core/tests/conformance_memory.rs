//! The memory engine passes the suite that every engine passes. Its data does not outlive the
//! process, so the cases that kill one are skipped, and counted.

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use xmtp_core::storage::{OpenError, Storage};
use xmtp_core::testing::conformance::{self, CASES, Engine, Needs};
use xmtp_core::testing::memory::MemoryDisk;

#[derive(Default)]
struct Memory {
    disks: Mutex<HashMap<PathBuf, MemoryDisk>>,
}

impl Engine for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn open(&self, dir: &Path) -> Result<Arc<dyn Storage>, OpenError> {
        let mut disks = self.disks.lock().expect("lock");
        Ok(disks.entry(dir.to_owned()).or_default().open())
    }
}

/// covers: STR-070, STR-071, STR-077, STR-078
#[test]
fn the_memory_engine_passes_the_suite() {
    let report = conformance::run(&Memory::default());
    let _ = writeln!(io::stdout(), "memory: {report}");
    assert!(report.failed.is_empty(), "{report}");
    let processes = CASES
        .iter()
        .filter(|case| matches!(case.needs, Needs::Child | Needs::Shared | Needs::Exclusive));
    assert_eq!(report.skipped.len(), processes.count());
    assert_eq!(report.passed.len() + report.skipped.len(), CASES.len());
}

#[test]
fn the_list_has_at_least_forty_cases_and_no_name_twice() {
    let mut names = conformance::names();
    assert!(names.len() >= 40);
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
}
