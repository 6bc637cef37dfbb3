//! What stands in `deploy/`, in `dev.toml` and in the documents for operators.

use super::*;
use std::path::PathBuf;
use std::process::Command;

const EXAMPLE: &str = "org.example.chat";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn text(path: &str) -> String {
    let text = std::fs::read_to_string(root().join(path));
    text.unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Lists the files below `deploy/`, as paths from the root.
fn deployed() -> Vec<String> {
    let (mut found, mut folders) = (Vec::new(), vec![root().join("deploy")]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let path = path.strip_prefix(root()).unwrap();
                found.push(path.to_str().unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

/// Feeds a configuration to `xmtp-backend check`, with the variables that the guides set.
fn is_accepted(name: &str, text: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("backend.toml");
    std::fs::write(&path, text).unwrap();
    let checked = Command::new(env!("CARGO_BIN_EXE_xmtp-backend"))
        .arg("check")
        .arg(&path)
        .env("DATABASE_URL", "postgres://user:password@host/name")
        .output()
        .unwrap();
    let problem = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success(), "{name}: {problem}");
}

fn tells_to_change_the_identifier(name: &str, text: &str) {
    let text = text.to_lowercase();
    for words in ["change it", "never", "again", "bound to it"] {
        assert!(text.contains(words), "{name}: {words}");
    }
}

/// covers: CFG-009, CFG-098
#[test]
fn every_configuration_that_is_handed_out_is_accepted() {
    let files: Vec<_> = deployed()
        .into_iter()
        .filter(|path| path.ends_with("/backend.toml"))
        .collect();
    assert_eq!(files.len(), 3, "{files:?}");
    for name in &files {
        let text = text(name);
        is_accepted(name, &text);
        assert!(text.contains(EXAMPLE), "{name}");
        tells_to_change_the_identifier(name, &text);
    }
    is_accepted("dev.toml", &text("dev.toml"));
}

/// Takes the lines below `key: |`, without their indentation.
fn block(text: &str, key: &str) -> String {
    let mut lines = text
        .lines()
        .skip_while(|line| line.trim() != format!("{key}: |"));
    let header = lines.next().unwrap_or_else(|| panic!("{key}"));
    let depth = header.len() - header.trim_start().len() + 2;
    let inside = |line: &&str| {
        line.trim().is_empty() || line.starts_with(&" ".repeat(depth)) || line.starts_with("{{")
    };
    let lines = lines.take_while(inside);
    lines
        .map(|line| {
            line.get(depth..)
                .filter(|_| !line.starts_with("{{"))
                .unwrap_or(line)
        })
        .map(|line| format!("{line}\n"))
        .collect()
}

/// covers: CFG-009, CFG-098
#[test]
fn the_configuration_of_the_chart_is_accepted() {
    let chart = "deploy/helm/xmtp-backend";
    let values = text(&format!("{chart}/values.yaml"));
    tells_to_change_the_identifier("values.yaml", &values);
    assert!(values.contains(&format!("\nidentifier: {EXAMPLE}\n")));
    let template = text(&format!("{chart}/templates/configmap.yaml"));
    let template = block(&template, "backend.toml");
    let filled = template.lines().map(|line| match line.split_once("{{") {
        Some((key, rest)) if rest.contains(".Values.identifier | quote") => {
            format!("{key}\"{EXAMPLE}\"\n")
        }
        Some((_, rest)) if rest.contains(".Values.config | indent") => block(&values, "config"),
        Some(_) => panic!("an unknown template: {line}"),
        None => format!("{line}\n"),
    });
    let filled: String = filled.collect();
    assert!(
        filled.contains("[server]") && filled.contains("[database]"),
        "{filled}"
    );
    is_accepted("the chart", &filled);
}

/// The files of the platforms are read as far as it goes without the platforms.
#[test]
fn the_files_of_the_platforms_have_their_syntax() {
    let mut kinds = [0; 3];
    for name in deployed() {
        let text = text(&name);
        match name.rsplit_once('.').map(|(_, extension)| extension) {
            Some("toml") => {
                toml::from_str::<toml::Table>(&text)
                    .unwrap_or_else(|error| panic!("{name}: {error}"));
                kinds[0] += 1;
            }
            Some("json") => {
                serde_json::from_str::<serde_json::Value>(&text)
                    .unwrap_or_else(|error| panic!("{name}: {error}"));
                kinds[1] += 1;
            }
            Some("yaml") => {
                assert!(!text.contains('\t'), "{name}: a tab");
                assert_eq!(
                    text.matches("{{").count(),
                    text.matches("}}").count(),
                    "{name}"
                );
                let opened = ["if ", "range ", "with "]
                    .map(|word| text.matches(&format!("{{{{- {word}")).count());
                let closed = text.matches("{{- end }}").count();
                assert_eq!(opened.iter().sum::<usize>(), closed, "{name}");
                for line in text.lines() {
                    let depth = line.len() - line.trim_start().len();
                    assert!(depth % 2 == 0, "{name}: {line}");
                }
                kinds[2] += 1;
            }
            _ => {}
        }
    }
    assert!(kinds.iter().all(|count| *count > 0), "{kinds:?}");
}

/// covers: CFG-009, CFG-010
#[test]
fn the_guides_name_an_example_and_say_to_change_it_once() {
    for guide in ["aws-ecs", "fly", "kubernetes", "railway"] {
        let name = format!("deploy/{guide}/README.md");
        let text = text(&name);
        assert!(text.contains(&format!("`{EXAMPLE}`")), "{name}");
        assert!(
            text.contains(
                "**change it to your own before the first client connects, and never again**"
            ),
            "{name}"
        );
        let is_marked = text.contains("only linted") || text.contains("run here");
        assert!(is_marked, "{name}: its state");
    }
    let operating = text("docs/operating.md");
    for words in [
        "**Never change it after clients have connected.**",
        "Every client database is bound to the identifier",
        EXAMPLE,
        "`xmtp-backend fence`",
        "Upgrade servers before clients",
    ] {
        assert!(operating.contains(words), "{words}");
    }
}

/// Each field of the schema has its line in the reference, with its default and its meaning.
#[test]
fn the_reference_has_every_field() {
    let schema = xmtp_backend::config::schema();
    let schema = schema.as_value();
    let operating = text("docs/operating.md");
    let (_, reference) = operating
        .split_once("<!-- configuration reference: begin -->")
        .unwrap();
    let (reference, _) = reference
        .split_once("<!-- configuration reference: end -->")
        .unwrap();
    let mut expected = String::from("\n| field | default | meaning |\n| --- | --- | --- |\n");
    let sections = schema["properties"].as_object().unwrap();
    let mut names: Vec<_> = sections.keys().collect();
    names.sort();
    for section in names {
        let meaning = |value: &serde_json::Value| {
            value["description"]
                .as_str()
                .unwrap_or("")
                .replace('\n', " ")
        };
        let Some(fields) = schema["$defs"][section]["properties"].as_object() else {
            expected += &format!("| `{section}.NAME` | | {} |\n", meaning(&sections[section]));
            continue;
        };
        let mut names: Vec<_> = fields.keys().collect();
        names.sort();
        for name in names {
            let default = match &fields[name]["default"] {
                serde_json::Value::Null => String::new(),
                default => format!(" `{default}`"),
            };
            expected += &format!(
                "| `{section}.{name}` |{default} | {} |\n",
                meaning(&fields[name])
            );
        }
    }
    assert!(
        reference == expected,
        "the reference should be:\n{expected}"
    );
}
