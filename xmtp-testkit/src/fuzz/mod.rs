//! What reads bytes from outside, each as a plain function of bytes.
//!
//! A fuzzer runs them for as long as it likes (`fuzz/`), and `tests/fuzz.rs` runs them over the
//! corpus that is checked in and over random bytes. A target fails by a panic: of the code that it
//! calls, or of a rule that it checks itself.

mod backend;
mod client;
mod seeds;
mod turns;

pub use seeds::seeds;

/// One target.
pub struct Target {
    /// Its name, which is that of its file in `fuzz/fuzz_targets/` and of its corpus.
    pub name: &'static str,
    /// Its body.
    pub run: fn(&[u8]),
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

const fn target(name: &'static str, run: fn(&[u8])) -> Target {
    Target { name, run }
}

/// Every target.
pub const TARGETS: &[Target] = &[
    target("publish", backend::publish),
    target("payload", backend::payload),
    target("query", backend::query),
    target("query_newest", backend::query_newest),
    target("inbox_ids", backend::inbox_ids),
    target("verify_wallets", backend::verify_wallets),
    target("subscribe", backend::subscribe),
    target("subscribe_static", backend::subscribe_static),
    target("config", backend::config),
    target("credential", backend::credential),
    target("key_set", backend::key_set),
    target("admission", client::admission),
    target("group_message", client::group_message),
    target("welcome", client::welcome),
    target("key_package", client::key_package),
    target("identity_update", client::identity_update),
    target("content", client::content),
    target("group_turn", turns::group),
    target("identity_turn", turns::identity),
    target("welcome_turn", turns::welcome),
];

/// Runs the target of a name.
///
/// # Panics
/// - If there is no such target, and where the target finds a fault.
pub fn run(name: &str, bytes: &[u8]) {
    let found = TARGETS.iter().find(|target| target.name == name);
    let target = found.expect("a target of that name");
    (target.run)(bytes);
}
