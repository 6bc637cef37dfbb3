//! Reads Rust source just well enough to judge it: which characters are code, which paths a `use`
//! names, and which parts are compiled for tests only.
//!
//! Everything here keeps line breaks, so a position in the result is a position in the file.

/// Blanks comments and the contents of string and character literals.
pub(crate) fn code_only(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out: Vec<char> = chars.clone();
    let mut at = 0;
    while at < chars.len() {
        let end = match chars[at] {
            '/' if chars.get(at + 1) == Some(&'/') => {
                let end = find(&chars, at, |c| c == '\n');
                blank(&mut out, at, end);
                end
            }
            '/' if chars.get(at + 1) == Some(&'*') => {
                let end = block_comment_end(&chars, at);
                blank(&mut out, at, end);
                end
            }
            '"' => {
                let end = string_end(&chars, at + 1);
                blank(&mut out, at + 1, end - 1);
                end
            }
            'r' if starts_raw_string(&chars, at) => {
                let (body, end) = raw_string(&chars, at);
                blank(&mut out, body, end - 1);
                end
            }
            '\'' if chars.get(at + 1) == Some(&'\\') => {
                let end = find(&chars, at + 3, |c| c == '\'') + 1;
                blank(&mut out, at + 1, end - 1);
                end
            }
            '\'' if chars.get(at + 2) == Some(&'\'') => {
                blank(&mut out, at + 1, at + 2);
                at + 3
            }
            _ => at + 1,
        };
        at = end.max(at + 1);
    }
    out.into_iter().collect()
}

/// Lists the lines, counted from 1, on which `word` stands as a word of its own. A word that ends in
/// `_` stands for itself and for every longer name that begins so.
pub(crate) fn lines_with(code: &str, word: &str) -> Vec<usize> {
    let lines = code.lines().enumerate();
    lines
        .filter(|(_, line)| has_word(line, word))
        .map(|(index, _)| index + 1)
        .collect()
}

/// Tells whether `word` stands in `line` with no identifier character touching it.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    let open_end = !word.ends_with(is_identifier) || word.ends_with('_');
    line.match_indices(word).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        let after = line[start + word.len()..].chars().next();
        !before.is_some_and(is_identifier) && (open_end || !after.is_some_and(is_identifier))
    })
}

/// Lists every path that a `use` names, braces resolved, with the line on which the `use` begins.
pub(crate) fn used_paths(code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (start, _) in code.match_indices("use") {
        let before = code[..start].chars().next_back();
        let rest = &code[start + 3..];
        let Some(end) = rest.find(';') else { continue };
        if before.is_some_and(is_identifier) || !rest.starts_with(char::is_whitespace) {
            continue;
        }
        let line = code[..start].matches('\n').count() + 1;
        let mut paths = Vec::new();
        expand("", &rest[..end], &mut paths);
        found.extend(paths.into_iter().map(|path| (line, path)));
    }
    found
}

/// What is compiled for tests only within one file: ranges of lines, and modules kept in files.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TestOnly {
    pub(crate) lines: Vec<(usize, usize)>,
    pub(crate) modules: Vec<String>,
}

/// Finds the items below a `#[cfg(test)]`, or below a `cfg` that names `test` beside other things.
pub(crate) fn test_only(code: &str) -> TestOnly {
    let mut found = TestOnly::default();
    for (start, _) in code.match_indices("#[cfg(") {
        let Some(length) = code[start..].find(']') else {
            continue;
        };
        let attribute = &code[start..start + length];
        if !has_word(attribute, "test") || attribute.contains("not(") {
            continue;
        }
        let mut item = code[start + length + 1..].trim_start();
        while item.starts_with("#[") {
            let Some(end) = item.find(']') else { break };
            item = item[end + 1..].trim_start();
        }
        let item_at = code.len() - item.len();
        let line = |at: usize| code[..at].matches('\n').count() + 1;
        let stop = item.find(['{', ';']).unwrap_or(item.len());
        if item[stop..].starts_with('{') {
            let end = item_at + block_end(&item[stop..]) + stop;
            found.lines.push((line(start), line(end)));
        } else if let Some((_, name)) = item[..stop].split_once("mod ") {
            found.modules.push(name.trim().to_owned());
        }
    }
    found
}

fn expand(prefix: &str, tree: &str, paths: &mut Vec<String>) {
    let tree = tree.trim();
    let Some(open) = tree.find('{') else {
        let path = tree.split_whitespace().next().unwrap_or("");
        let joined = format!("{prefix}{path}");
        paths.push(joined.strip_suffix("::self").unwrap_or(&joined).to_owned());
        return;
    };
    let head = format!("{prefix}{}", tree[..open].trim());
    let inner = &tree[open + 1..open + block_end(&tree[open..])];
    let (mut depth, mut begin) = (0, 0);
    for (at, c) in inner.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                expand(&head, &inner[begin..at], paths);
                begin = at + 1;
            }
            _ => {}
        }
    }
    if !inner[begin..].trim().is_empty() {
        expand(&head, &inner[begin..], paths);
    }
}

/// The offset of the brace that closes the one at the start of `code`.
fn block_end(code: &str) -> usize {
    let mut depth = 0;
    for (at, c) in code.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => return at,
            '}' => depth -= 1,
            _ => {}
        }
    }
    code.len()
}

fn block_comment_end(chars: &[char], start: usize) -> usize {
    let (mut depth, mut at) = (0, start);
    while at + 1 < chars.len() {
        match (chars[at], chars[at + 1]) {
            ('/', '*') => (depth, at) = (depth + 1, at + 2),
            ('*', '/') if depth == 1 => return at + 2,
            ('*', '/') => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
    chars.len()
}

fn string_end(chars: &[char], body: usize) -> usize {
    let mut at = body;
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    chars.len()
}

fn starts_raw_string(chars: &[char], at: usize) -> bool {
    let prefixed = at > 0 && matches!(chars[at - 1], 'b' | 'c');
    let start = if prefixed { at - 1 } else { at };
    let free = start == 0 || !is_identifier(chars[start - 1]);
    let hashes_end = find(chars, at + 1, |c| c != '#');
    free && chars.get(hashes_end) == Some(&'"')
}

fn raw_string(chars: &[char], at: usize) -> (usize, usize) {
    let quote = find(chars, at + 1, |c| c != '#');
    let hashes = quote - at - 1;
    let mut end = quote + 1;
    while end < chars.len() {
        let closing = &chars[end + 1..chars.len().min(end + 1 + hashes)];
        if chars[end] == '"' && closing.len() == hashes && closing.iter().all(|c| *c == '#') {
            return (quote + 1, end + 1 + hashes);
        }
        end += 1;
    }
    (quote + 1, chars.len())
}

fn find(chars: &[char], from: usize, wanted: impl Fn(char) -> bool) -> usize {
    let rest = chars.iter().skip(from);
    rest.clone()
        .position(|c| wanted(*c))
        .map_or(chars.len(), |offset| from + offset)
}

fn blank(out: &mut [char], from: usize, to: usize) {
    let to = to.min(out.len());
    if from < to {
        for c in out[from..to].iter_mut().filter(|c| **c != '\n') {
            *c = ' ';
        }
    }
}

fn is_identifier(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::{TestOnly, code_only, has_word, lines_with, test_only, used_paths};

    #[test]
    fn comments_and_literals_are_not_code() {
        let text = "a /* b /* c */ d */ e // f\n\"g\\\" h\" i r#\"j\" k\"# l '\\'' m 'n' &'o p\n";
        let code = code_only(text);
        let words: Vec<_> = code
            .split(|c: char| !c.is_alphabetic())
            .filter(|w| !w.is_empty())
            .collect();
        assert_eq!(words, ["a", "e", "i", "r", "l", "m", "o", "p"]);
        assert_eq!(code.lines().count(), 2);
        assert_eq!(code.chars().count(), text.chars().count());
    }

    #[test]
    fn unfinished_literals_end_with_the_file() {
        for text in ["\"open", "r#\"open", "/* open", "'\\", "r", "b'", "'"] {
            assert_eq!(code_only(text).chars().count(), text.chars().count());
        }
    }

    #[test]
    fn words_have_edges() {
        assert!(has_word("thread::sleep(now)", "sleep("));
        assert!(!has_word("no_sleep(now)", "sleep("));
        assert!(has_word("use sled::Db", "sled::"));
        assert!(!has_word("hyperbola", "hyper"));
        assert!(has_word("openmls_traits::Key", "openmls_"));
        assert_eq!(lines_with("a\nb a\nab\n", "a"), [1, 2]);
    }

    #[test]
    fn braces_of_a_use_are_resolved() {
        let code =
            "x;\npub use tokio::{\n  self, sync::{mpsc, oneshot as once},\n  time,\n};\nuse a::b;";
        let paths: Vec<_> = used_paths(code);
        let expected = [
            (2, "tokio"),
            (2, "tokio::sync::mpsc"),
            (2, "tokio::sync::oneshot"),
            (2, "tokio::time"),
            (6, "a::b"),
        ];
        assert_eq!(paths, expected.map(|(line, path)| (line, path.to_owned())));
    }

    #[test]
    fn test_only_parts_are_found() {
        let code = "fn a() {}\n#[cfg(test)]\n#[x]\nmod t {\n fn b() { {} }\n}\nfn c() {}\n\
                    #[cfg(all(test, unix))]\nmod far;\n#[cfg(not(test))]\nmod no {}\n";
        let expected = TestOnly {
            lines: vec![(2, 6)],
            modules: vec!["far".to_owned()],
        };
        assert_eq!(test_only(code), expected);
    }
}
