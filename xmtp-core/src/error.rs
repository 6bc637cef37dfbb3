//! What every error of the stack carries: a stable code, a class, and a sentence (EXT-008).

use std::fmt;

/// What the caller may do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// The same call may succeed at once or after a short pause.
    Retry,
    /// The condition ends by itself; wait for it.
    Wait,
    /// The same call can never succeed.
    Permanent,
    /// A person or the application has to change something first.
    UserAction,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Retry => "retry",
            Self::Wait => "wait",
            Self::Permanent => "permanent",
            Self::UserAction => "user action",
        })
    }
}

/// An error with a stable code and a class. Its `Display` is one sentence that says what happened
/// and what to do, and holds no payload, key or full installation id (EXT-007).
pub trait Coded: std::error::Error {
    /// Answers the stable code, such as `storage.busy`.
    fn code(&self) -> &'static str;

    /// Answers what the caller may do.
    fn class(&self) -> Class;
}
