//! Who may know whom: the dependency table, over what cargo says about the manifests.

use std::process::Command;

use serde_json::Value;

use crate::files::{self, text_files};
use crate::report;

/// The crates a client is made of.
const CLIENT_CRATES: [&str; 7] = [
    "xmtp-core",
    "xmtp-identity",
    "xmtp-mls",
    "xmtp-proto",
    "xmtp-storage-sled",
    "xmtp-storage-sqlite",
    "xmtp-transport-grpc",
];

/// What each crate may depend on among our own, in normal and build dependencies.
const MAY_DEPEND_ON: [(&str, &[&str]); 13] = [
    ("xmtp-proto", &[]),
    ("xmtp-identity", &["xmtp-proto"]),
    ("xmtp-core", &["xmtp-proto"]),
    ("xmtp-storage-sqlite", &["xmtp-core"]),
    ("xmtp-storage-sled", &["xmtp-core"]),
    ("xmtp-transport-grpc", &["xmtp-core", "xmtp-proto"]),
    ("xmtp-mls", &["xmtp-core", "xmtp-identity", "xmtp-proto"]),
    ("xmtp-backend", &["xmtp-identity", "xmtp-proto"]),
    ("xmtp-bindings", &CLIENT_CRATES),
    ("xmtp-gateway", &CLIENT_CRATES),
    ("xmtp-cli", &CLIENT_CRATES),
    ("xmtp", &CLIENT_CRATES),
    ("xmtp-testkit", &EVERYTHING),
];

/// What the testkit may use: it composes all the rest.
const EVERYTHING: [&str; 8] = [
    "xmtp-backend",
    "xmtp-core",
    "xmtp-identity",
    "xmtp-mls",
    "xmtp-proto",
    "xmtp-storage-sled",
    "xmtp-storage-sqlite",
    "xmtp-transport-grpc",
];

/// Libraries that core must work without; a longer name that begins so counts as well.
const FOREIGN_TO_CORE: [&str; 5] = ["openmls", "rusqlite", "sled", "tonic", "hyper"];

/// One workspace crate and what its manifest names.
#[derive(Debug)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Debug)]
struct Dependency {
    name: String,
    dev: bool,
}

fn packages_in(metadata: &Value) -> Vec<Package> {
    let list = |value: &Value| value.as_array().expect("an array").clone();
    let name = |value: &Value| value["name"].as_str().expect("a name").to_owned();
    let dependency = |value: &Value| Dependency {
        name: name(value),
        dev: value["kind"].as_str() == Some("dev"),
    };
    list(&metadata["packages"])
        .iter()
        .map(|package| Package {
            name: name(package),
            dependencies: list(&package["dependencies"])
                .iter()
                .map(dependency)
                .collect(),
        })
        .collect()
}

fn workspace_packages() -> Vec<Package> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args([
            "metadata",
            "--format-version",
            "1",
            "--no-deps",
            "--offline",
        ])
        .current_dir(files::root())
        .output()
        .expect("cargo can be started");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    packages_in(&serde_json::from_slice(&output.stdout).expect("cargo prints JSON"))
}

fn dependency_faults(packages: &[Package]) -> Vec<String> {
    let mut faults = Vec::new();
    for package in packages {
        let Some((_, allowed)) = MAY_DEPEND_ON.iter().find(|(name, _)| *name == package.name)
        else {
            faults.push(format!(
                "{} has no row in the dependency table",
                package.name
            ));
            continue;
        };
        for dependency in &package.dependencies {
            let name = dependency.name.as_str();
            let ours = name == "xmtp" || name.starts_with("xmtp-");
            let itself = dependency.dev && name == package.name;
            if name == "xmtp-bindings"
                || (ours && !itself && !dependency.dev && !allowed.contains(&name))
            {
                faults.push(format!("{} may not depend on {name}", package.name));
            }
            if package.name == "xmtp-core"
                && FOREIGN_TO_CORE.iter().any(|bad| belongs_to(name, bad))
            {
                faults.push(format!(
                    "xmtp-core may not name {name}, not even for its tests"
                ));
            }
            if package.name == "xmtp-backend" && name == "xmtp-core" && dependency.dev {
                faults
                    .push("xmtp-backend may not use xmtp-core, not even for its tests".to_owned());
            }
        }
    }
    faults
}

fn belongs_to(name: &str, family: &str) -> bool {
    name.strip_prefix(family)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '_']))
}

#[test]
fn crates_depend_only_on_what_the_table_allows() {
    report(
        "the dependency table",
        dependency_faults(&workspace_packages()),
    );
}

#[test]
fn a_forbidden_dependency_is_found() {
    let metadata = serde_json::json!({ "packages": [
        { "name": "xmtp-core", "dependencies": [
            { "name": "xmtp-proto", "kind": null }, { "name": "xmtp-core", "kind": "dev" },
            { "name": "xmtp-mls", "kind": null }, { "name": "openmls_traits", "kind": "dev" },
            { "name": "hyperlocal", "kind": null } ] },
        { "name": "xmtp-backend", "dependencies": [
            { "name": "xmtp-core", "kind": "dev" }, { "name": "xmtp-mls", "kind": "build" } ] },
        { "name": "xmtp-identity", "dependencies": [ { "name": "xmtp-testkit", "kind": null } ] },
        { "name": "xmtp", "dependencies": [
            { "name": "xmtp-backend", "kind": "dev" }, { "name": "xmtp-backend", "kind": null },
            { "name": "xmtp-testkit", "kind": "dev" }, { "name": "xmtp-bindings", "kind": "dev" } ] },
        { "name": "xmtp-attic", "dependencies": [] },
    ] });
    let expected = [
        "xmtp-core may not depend on xmtp-mls",
        "xmtp-core may not name openmls_traits, not even for its tests",
        "xmtp-backend may not use xmtp-core, not even for its tests",
        "xmtp-backend may not depend on xmtp-mls",
        "xmtp-identity may not depend on xmtp-testkit",
        "xmtp may not depend on xmtp-backend",
        "xmtp may not depend on xmtp-bindings",
        "xmtp-attic has no row in the dependency table",
    ];
    assert_eq!(dependency_faults(&packages_in(&metadata)), expected);
}

/// External crates and workspace members that the text does not explain, each in backticks.
fn unexplained(packages: &[Package], text: &str) -> Vec<String> {
    let dependencies = packages.iter().flat_map(|package| &package.dependencies);
    let members = packages.iter().map(|package| &package.name);
    let mut names: Vec<_> = dependencies
        .map(|dependency| &dependency.name)
        .chain(members)
        .collect();
    names.sort();
    names.dedup();
    names.retain(|name| !text.contains(&format!("`{name}`")));
    names
        .iter()
        .map(|name| format!("ARCHITECTURE.md gives no reason for `{name}`"))
        .collect()
}

#[test]
fn every_crate_has_its_reason_in_the_document() {
    let files = text_files();
    let document = files
        .iter()
        .find(|file| file.path == "ARCHITECTURE.md")
        .expect("ARCHITECTURE.md");
    report(
        "reasons for crates",
        unexplained(&workspace_packages(), &document.text),
    );
}

#[test]
fn a_crate_without_a_reason_is_found() {
    let metadata = serde_json::json!({ "packages": [
        { "name": "xmtp", "dependencies": [ { "name": "left", "kind": null }, { "name": "pad", "kind": "dev" } ] },
    ] });
    let expected = ["ARCHITECTURE.md gives no reason for `pad`"];
    assert_eq!(
        unexplained(&packages_in(&metadata), "`xmtp` needs `left`, not pad"),
        expected
    );
}
