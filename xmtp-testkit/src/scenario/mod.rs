//! Scenarios: short text files that real clients play over a real backend.
//!
//! One line a step, `#` begins a comment. A requirement id stands in the comment of the line that
//! asserts it.
//!
//! ```text
//! people alice bo          who takes part; each has a database of their own
//! alice creates ops        a group with only its creator
//! alice adds bo to ops
//! alice removes bo from ops
//! alice renames ops to crew
//! alice sends ops hello    waits for confirmation by ordered processing
//! bo syncs                 to fixed heads, Welcomes and discovered groups included
//! bo consumes 2            takes two texts from the default consumer and acknowledges them
//! bo restarts              closes the client and opens it again
//! bo has ops hello hi      the stored texts of the group, in delivery order
//! bo is in ops             or: bo is out of ops
//! alice agrees with bo on ops   same epoch, same authenticator
//! alice names ops crew     the group's name as alice sees it
//! device tablet of bo      somebody with bo's account and a database of their own
//! bo restarts 2 days later bo hurries    the clock is ahead, or timers run faster, from then on
//! bo syncs in part         to an incomplete result
//! ```
//!
//! Anybody can be a rogue, whose client stays honest and learns of nothing ([`crate::rogue`]):
//!
//! ```text
//! mallory keeps text ops hi as x      makes an envelope of a kind and keeps it under a label
//! mallory posts text ops hi as x      makes it and publishes it
//! mallory posts x                     publishes what is kept
//! mallory cannot post x               the backend refuses it
//! mallory founds dm pair with bo      a group whose adding commit is kept as pair-adding
//! bo revokes tablet                   by an update that is kept as tablet-revoked
//! bo sees x for y                     bo's wire shows x in the place of y
//! bo sees a broken inbox of caro      bo's wire shows an update that nobody signed
//! bo loses the proposals of ops       as a damaged database does
//! ```
//!
//! Kinds of bytes: `again`, `cut`, `flipped`, `longer`, `not-symmetric` and `pointer-again` of a
//! label, `nothing`, `large GROUP`. Of messages: `text`, `text-ahead`, `text-forged`, `text-after`.
//! Of proposals: `proposal GROUP PLACE`. Of commits: see `draft.rs`. Of Welcomes: `welcome` and
//! `pointer`, each `COMMIT WHOM ANCHOR`, the former with how it is wrapped. What others stored is
//! found as `newest GROUP`, `newest-identity WHO` and `newest-welcome WHO`. A number is `zero`,
//! `huge`, `late`, or the sequence id of a label.
//!
//! What became of an envelope is read from the database, and waited for:
//!
//! ```text
//! bo applies x                        handled, and not rejected
//! bo rejects x as commit_stale        handled, with this recorded reason
//! bo is blocked at x by unsupported   P is before it, the head or the Welcome is blocked
//! bo waits at x                       P is before it, something it needs is missing
//! bo holds x                          received and not handled
//! bo joins by x                       a Welcome that led to a group
//! bo has received to x                F is there
//! bo has processed to x               P is there
//! ```
//!
//! Every step can be repeated after a crash in the middle of it: a message has its step's number as
//! idempotency key, and a change that is already in effect is superseded.

mod draft;
mod forge;
mod parse;
mod play;
mod power;
mod verdict;
mod wire;
mod world;

pub use parse::{ParseError, Scenario, Step, Told, parse};
pub use play::{Outcome, PlayError, play};
pub use world::{CrashAt, Engine, PersonState, PowerLoss, World};
