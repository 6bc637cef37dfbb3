//! Key packages: how this installation can be added, and how others are.
//!
//! One package is current at a time and serves all senders (it is of last resort). [`make`] builds
//! and keeps one; [`Rotation`] says when the next is due and when an old one may go; [`check`]
//! judges a fetched one.

mod check;
mod make;
mod rotation;

pub use check::{FetchedPackage, PackageFault, PackageRule, check};
pub use make::{Made, MakeFault, make};
pub use rotation::{
    DESTROY_AFTER_NS, ROTATE_AFTER_NS, ROTATE_AFTER_WELCOME_NS, Rotation, bring_back, confirm,
    destroy, named_key, note_welcome,
};
