//! Whether a validated Welcome is installed: the table of STR-082 as a pure function.

use xmtp_proto::SequenceId;

use crate::processor::Rejected;

/// The local group that a Welcome meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LocalGroup {
    pub(crate) active: bool,
    pub(crate) epoch: u64,
}

/// What to do with a validated Welcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Install,
    /// Process the old group's prefix through the anchor first, then decide again.
    PrefixFirst,
    Reject(Rejected),
}

/// Decides from the local state, P of the group's topic, the anchor and the Welcome's epoch.
pub(crate) fn decide(
    local: Option<LocalGroup>,
    processed: SequenceId,
    anchor: SequenceId,
    epoch: u64,
) -> Decision {
    if processed > anchor {
        return Decision::Reject(Rejected::WelcomeSuperseded);
    }
    let Some(local) = local else {
        return Decision::Install;
    };
    match (local.active, processed < anchor) {
        (false, true) => Decision::Install,
        (false, false) if epoch >= local.epoch => Decision::Install,
        (false, false) => Decision::Reject(Rejected::WelcomeStale),
        (true, _) if local.epoch >= epoch => Decision::Reject(Rejected::WelcomeStale),
        (true, true) => Decision::PrefixFirst,
        (true, false) => Decision::Reject(Rejected::WelcomeConflicting),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANCHOR: SequenceId = SequenceId::saturating(10);

    fn local(active: bool, epoch: u64) -> Option<LocalGroup> {
        Some(LocalGroup { active, epoch })
    }

    /// Every row of the join table.
    /// covers: STR-082
    #[test]
    fn the_join_table_holds_row_by_row() {
        use Decision::{Install, PrefixFirst, Reject};
        let rows = [
            (None, 0, 5, Install),
            (None, 10, 5, Install),
            (None, 11, 5, Reject(Rejected::WelcomeSuperseded)),
            (local(false, 9), 9, 5, Install),
            (local(false, 5), 10, 5, Install),
            (local(false, 4), 10, 5, Install),
            (local(false, 6), 10, 5, Reject(Rejected::WelcomeStale)),
            (local(false, 6), 11, 9, Reject(Rejected::WelcomeSuperseded)),
            (local(true, 5), 9, 5, Reject(Rejected::WelcomeStale)),
            (local(true, 6), 9, 5, Reject(Rejected::WelcomeStale)),
            (local(true, 4), 9, 5, PrefixFirst),
            (local(true, 4), 10, 5, Reject(Rejected::WelcomeConflicting)),
            (local(true, 4), 11, 5, Reject(Rejected::WelcomeSuperseded)),
        ];
        for (group, processed, epoch, expected) in rows {
            let found = decide(group, SequenceId::saturating(processed), ANCHOR, epoch);
            assert_eq!(found, expected, "{group:?} P={processed} epoch={epoch}");
        }
    }
}
