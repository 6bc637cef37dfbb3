//! Finds the files of the workspace, so that every rule reads the same set.
//!
//! The walk needs no version control: it takes every file that is present, tracked or not, because a
//! fault is cheaper to hear about before it is committed.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Folders that hold fetched things, by name, wherever they stand.
const SKIPPED_FOLDERS: [&str; 3] = [".git", "node_modules", ".venv"];

/// The file by which cargo and other tools mark a folder of built things, whatever its name.
const BUILT_MARK: &str = "CACHEDIR.TAG";

/// Files above this size are data, not text that somebody wrote: 1 MiB.
const MAX_TEXT_BYTES: u64 = 1024 * 1024;

/// One text file: its path from the root of the workspace, with `/` between the parts, and its text.
#[derive(Debug, Clone)]
pub(crate) struct TextFile {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// The folder of the root package, which is the root of the workspace.
pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Reads every UTF-8 file of the workspace, in order of path.
pub(crate) fn text_files() -> Vec<TextFile> {
    let root = root();
    let mut found = Vec::new();
    walk(&root, &root, &mut found);
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(
        found.iter().any(|file| file.path == "Cargo.toml"),
        "no Cargo.toml below {}: the walk starts in the wrong folder",
        root.display()
    );
    found
}

/// Tells whether `path` ends with `.` and one of the extensions.
pub(crate) fn has_extension(path: &str, extensions: &[&str]) -> bool {
    path.rsplit_once('.')
        .is_some_and(|(_, extension)| extensions.contains(&extension))
}

fn walk(root: &Path, folder: &Path, found: &mut Vec<TextFile>) {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return,
        Err(error) => panic!("cannot list {}: {error}", folder.display()),
    };
    for entry in entries {
        let entry = entry.expect("a folder entry can be read");
        let path = entry.path();
        let Ok(kind) = entry.file_type() else {
            continue;
        };
        if kind.is_dir() {
            let name = entry.file_name();
            let skipped = SKIPPED_FOLDERS.iter().any(|skipped| name == **skipped);
            if !skipped && !path.join(BUILT_MARK).exists() {
                walk(root, &path, found);
            }
        } else if kind.is_file()
            && entry
                .metadata()
                .is_ok_and(|data| data.len() <= MAX_TEXT_BYTES)
        {
            // A file may vanish between the listing and the read, and data files are not UTF-8.
            if let Ok(text) = fs::read_to_string(&path) {
                let below = path
                    .strip_prefix(root)
                    .expect("the walk stays below the root");
                let parts: Vec<_> = below.iter().map(|part| part.to_string_lossy()).collect();
                found.push(TextFile {
                    path: parts.join("/"),
                    text,
                });
            }
        }
    }
}
