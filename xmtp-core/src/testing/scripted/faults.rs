//! What a script can do to calls and frames.

use std::time::Duration;

use crate::transport::TransportError;

/// A kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Call {
    Publish,
    Query,
    QueryNewest,
    Subscribe,
}

/// What happens to one call.
#[derive(Clone, Debug)]
pub enum Fault {
    /// It is refused before anything is done.
    Refuse(TransportError),
    /// It is done, and its reply is lost.
    DropReply,
    /// It is done later.
    Delay(Duration),
    /// It never answers.
    Hang,
}

/// What happens to one Messages frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameFault {
    /// It is sent twice.
    Duplicate,
    /// Its envelopes come in the reverse order.
    Reverse,
    /// Its envelopes say that they belong to a topic nobody asked for.
    Foreign,
    /// An answer to an update that nobody sent comes before it.
    StrayApplied,
}
