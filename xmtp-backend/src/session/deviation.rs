//! Rules that a test may have a session break, to see that some test notices.
//!
//! Outside tests no session breaks any: [`Session::deviates`] is a constant there.

use super::Session;

/// A rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deviation {
    /// Topics are registered after their heads were read.
    RegistersAfterHeads,
    /// What is told before the acknowledgement is queued at once.
    EmitsBeforeApplied,
    /// What was told before the acknowledgement is forgotten with it.
    ForgetsNoticesOfPending,
    /// What is told while catching up is forgotten.
    ForgetsNoticesOfCatchUp,
    /// A fetched batch is taken whatever became of its registration.
    IgnoresGenerations,
    /// An acknowledgement goes before messages that were queued earlier.
    #[cfg(test)]
    AppliedOvertakes,
    /// What is told is queued although it is at or below the floor.
    IgnoresFloor,
    /// What finds no room while live is dropped.
    DropsWithoutRoom,
    /// The mark of an overflow is ignored.
    IgnoresOverflow,
    /// A scan that was cut moves the floor to its end.
    CutScanMovesFloor,
    /// Adding an active topic moves its floor to the cursor.
    #[cfg(test)]
    AddSeeks,
    /// An update is applied while the one before it reads heads.
    UpdatesOverlap,
    /// A served topic that needs more goes to the front.
    ServedFirst,
    /// Topics that a turn did not visit go to the back.
    UnvisitedLast,
    /// An overdue answer ends the stream before what is there was read.
    ExpiresUnread,
    /// A queue may stand still for ever.
    IgnoresQueueAge,
    /// A failure waits for the update that is being applied.
    FailureWaits,
    /// The start of a fixed stream is queued before the targets are known.
    StartsWithoutTargets,
}

impl Session {
    /// Tells whether a test asked for this rule to be broken.
    #[cfg(test)]
    pub(super) fn deviates(&self, rule: Deviation) -> bool {
        self.limits.deviation == Some(rule)
    }

    /// Tells whether a test asked for this rule to be broken.
    #[cfg(not(test))]
    #[allow(clippy::unused_self, reason = "tests ask the session")]
    pub(super) const fn deviates(&self, _: Deviation) -> bool {
        false
    }
}
