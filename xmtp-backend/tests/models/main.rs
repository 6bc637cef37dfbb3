//! Models of what the backend promises, each checked over every order in which its steps can happen.
//!
//! - `delivery`: publishers, the closed boundary, a replica, the tailer, and one subscription. It is
//!   the design of `store`, `session` and `stream` without their code.
//! - `endings`: each of its runs ends, which its "eventually" stands on.
//! - `lock_order`: the locks of publishes alone.
//!
//! A model that cannot fail proves nothing, so each rule of the design is a switch
//! ([`scope::Fault`]), and a test per switch shows which property fails without the rule.

mod delivery;
mod endings;
mod lock_order;
mod mutants;
mod scope;
mod session;
mod state;
mod store;
mod tailer;
